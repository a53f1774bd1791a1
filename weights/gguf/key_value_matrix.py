"""The matrix that makes keys and values of latents, from the two tensors of a GGUF file."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from swiftchat.weights.formats.ggml_dequantize import dequantize
from swiftchat.weights.formats.gguf_header import GgufTensor

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class KeyValueMatrix:
    """Keys [heads, kv_rank, nope_dim], transposed, and values [heads, value_dim, kv_rank].

    The merged matrix [heads * (nope_dim + value_dim), kv_rank] has the rows of a head's key, then
    those of its value.
    """

    tensors: tuple[GgufTensor, GgufTensor]

    def part(self, stored: Sequence[Bytes], start: int, stop: int) -> Floats:
        """Return the rows from `start` to `stop`.

        `stored` are the bytes of `tensors`, uint8 [all rows, bytes of a row].
        """
        keys, values = self.tensors
        per_head = keys.shape[2] + values.shape[1]
        first = start // per_head
        heads = [self._head(stored, head) for head in range(first, -(-stop // per_head))]
        return np.concatenate(heads)[start - first * per_head : stop - first * per_head]

    def chunks(self, rows: Callable[[GgufTensor], Bytes]) -> Iterator[Floats]:
        """Yield the elements flat, one head after the other; `rows` returns a tensor's bytes."""
        stored = [rows(tensor) for tensor in self.tensors]
        for head in range(self.tensors[0].shape[0]):
            yield self._head(stored, head).reshape(-1)

    def _head(self, stored: Sequence[Bytes], head: int) -> Floats:
        parts = []
        for tensor, data in zip(self.tensors, stored, strict=True):
            count = tensor.shape[1]
            part = dequantize(data[head * count : (head + 1) * count], tensor.type_name)
            parts.append(part.reshape(tensor.shape[1:]))
        return np.concatenate([parts[0].T, parts[1]])
