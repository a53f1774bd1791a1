"""A matrix whose columns a GGUF file has in another order."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from swiftchat.weights.formats.ggml_dequantize import dequantize
from swiftchat.weights.formats.gguf_header import GgufTensor
from swiftchat.weights.quantization.scheme import Spans

_ROWS_AT_ONCE = 256

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class OrderedColumns:
    """A matrix; it has the file's columns in `spans`, (start, stop) each, beside one another."""

    tensors: tuple[GgufTensor]
    spans: Spans

    def part(self, stored: Sequence[Bytes], start: int, stop: int) -> Floats:
        """Return the rows from `start` to `stop`; `stored` are the bytes, uint8 [rows, …]."""
        rows = dequantize(stored[0][start:stop], self.tensors[0].type_name)
        rows = rows.reshape(stop - start, -1)
        return np.concatenate([rows[:, first:end] for first, end in self.spans], axis=1)

    def chunks(self, rows: Callable[[GgufTensor], Bytes]) -> Iterator[Floats]:
        """Yield the elements flat; `rows` returns a tensor's bytes."""
        stored = rows(self.tensors[0])
        for start in range(0, len(stored), _ROWS_AT_ONCE):
            yield self.part([stored], start, min(start + _ROWS_AT_ONCE, len(stored))).reshape(-1)
