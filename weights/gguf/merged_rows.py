"""A matrix with the rows of several tensors of a GGUF file."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from swiftchat.weights.formats.ggml_dequantize import dequantize
from swiftchat.weights.formats.gguf_header import GgufTensor

_ROWS_AT_ONCE = 2048

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class MergedRows:
    """Two matrices one below the other, such as gate and up.

    `order` are the places of the merged matrix's rows there; None: they keep their order.
    """

    tensors: tuple[GgufTensor, GgufTensor]
    order: npt.NDArray[np.intp] | None = None

    def part(self, stored: Sequence[Bytes], start: int, stop: int) -> Floats:
        """Return the rows from `start` to `stop`; `stored` are the bytes of `tensors`, by rows."""
        places = np.arange(start, stop) if self.order is None else self.order[start:stop]
        found = np.empty((stop - start, self.tensors[0].shape[1]), np.float32)
        first = 0
        for tensor, data in zip(self.tensors, stored, strict=True):
            here = (places >= first) & (places < first + len(data))
            if here.any():
                rows = dequantize(data[places[here] - first], tensor.type_name)
                found[here] = rows.reshape(-1, found.shape[1])
            first += len(data)
        return found

    def chunks(self, rows: Callable[[GgufTensor], Bytes]) -> Iterator[Floats]:
        """Yield the elements flat; `rows` returns a tensor's bytes."""
        stored = [rows(tensor) for tensor in self.tensors]
        count = sum(map(len, stored))
        for start in range(0, count, _ROWS_AT_ONCE):
            yield self.part(stored, start, min(start + _ROWS_AT_ONCE, count)).reshape(-1)
