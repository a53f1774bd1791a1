"""The gate and up rows of an MLP, from the two tensors of a GGUF file."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from swiftchat.weights.formats.ggml_dequantize import dequantize
from swiftchat.weights.formats.gguf import GgufTensor

__all__ = ["MergedRows"]

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class MergedRows:
    """Matrices with equally many rows, one below the other."""

    tensors: tuple[GgufTensor, GgufTensor]

    def part(self, stored: Sequence[Bytes], start: int, stop: int) -> Floats:
        """Return the rows from `start` to `stop`; `stored` are the bytes of `tensors`, by rows."""
        parts, count = [], self.tensors[0].shape[0]
        for i, (tensor, data) in enumerate(zip(self.tensors, stored, strict=True)):
            rows = data[max(0, start - i * count) : max(0, stop - i * count)]
            parts.append(dequantize(rows, tensor.type_name).reshape(len(rows), -1))
        return np.concatenate([part for part in parts if len(part)])

    def chunks(self, rows: Callable[[GgufTensor], Bytes]) -> Iterator[Floats]:
        """Yield the elements flat, one tensor after the other; `rows` returns a tensor's bytes."""
        for tensor in self.tensors:
            yield dequantize(rows(tensor), tensor.type_name).reshape(-1)
