"""The experts of a GGUF file as the merged tensors of a Hugging Face model."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from swiftchat.weights.formats.ggml_dequantize import dequantize
from swiftchat.weights.formats.gguf_header import GgufTensor

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class StackedExperts:
    """The GGUF tensors that one tensor with all experts is made of.

    Each of `tensors` is [experts, rows, columns], a bias [experts, rows]: gate and up, or one. In
    the merged tensor their rows alternate if `interleaved`, else one follows the other. With
    `transposed` an expert's merged matrix is [columns, rows].
    """

    tensors: tuple[GgufTensor, ...]
    interleaved: bool
    transposed: bool

    def part(self, stored: Sequence[Bytes], start: int, stop: int) -> Floats:
        """Return the experts from `start` to `stop`.

        `stored` are the bytes of `tensors`, uint8 [all rows, bytes of a row].
        """
        return np.stack([self._expert(stored, e) for e in range(start, stop)])

    def chunks(self, rows: Callable[[GgufTensor], Bytes]) -> Iterator[Floats]:
        """Yield the elements flat, one expert after the other; `rows` returns a tensor's bytes."""
        stored = [rows(tensor) for tensor in self.tensors]
        for e in range(self.tensors[0].shape[0]):
            yield self._expert(stored, e).reshape(-1)

    def _expert(self, stored: Sequence[Bytes], e: int) -> Floats:
        parts = []
        for tensor, data in zip(self.tensors, stored, strict=True):
            num_rows = len(data) // tensor.shape[0]
            part = dequantize(data[e * num_rows : (e + 1) * num_rows], tensor.type_name)
            parts.append(part.reshape(tensor.shape[1:]))
        merged = np.stack(parts, axis=1 if self.interleaved else 0)
        merged = merged.reshape(-1, *parts[0].shape[1:])
        return merged.T if self.transposed else merged
