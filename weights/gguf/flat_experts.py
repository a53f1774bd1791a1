"""The experts of a layer in one matrix, one below the other, which GGUF files have stacked."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from swiftchat.weights.formats.ggml_dequantize import dequantize
from swiftchat.weights.formats.gguf_header import GgufTensor

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class FlatExperts:
    """A GGUF tensor [experts, rows, columns] as one matrix [experts * rows, columns] (DBRX).

    With `transposed` the matrix of each expert is transposed.
    """

    tensors: tuple[GgufTensor]
    transposed: bool

    def part(self, stored: Sequence[Bytes], start: int, stop: int) -> Floats:
        """Return rows of the matrix; `stored` are the bytes, uint8 [all rows, bytes of a row]."""
        _, rows, columns = self.tensors[0].shape
        height = columns if self.transposed else rows
        first, last = start // height, -(-stop // height)
        found = np.concatenate([self._expert(stored[0], e) for e in range(first, last)])
        return found[start - first * height : stop - first * height]

    def chunks(self, rows: Callable[[GgufTensor], Bytes]) -> Iterator[Floats]:
        """Yield the elements flat, one expert after the other; `rows` returns a tensor's bytes."""
        data = rows(self.tensors[0])
        for e in range(self.tensors[0].shape[0]):
            yield self._expert(data, e).reshape(-1)

    def _expert(self, data: Bytes, e: int) -> Floats:
        _, rows, columns = self.tensors[0].shape
        own = dequantize(data[e * rows : (e + 1) * rows], self.tensors[0].type_name)
        own = own.reshape(rows, columns)
        return own.T if self.transposed else own
