"""The changes of adapters for the native kernels: an array of `Delta` that can be filled later."""

import ctypes
from typing import Any

from torch import Tensor

from swiftchat.engine.cpu import native
from swiftchat.engine.cpu.matrices import FloatMatrix
from swiftchat.engine.linear.adapted import Delta


class NativeDeltas:
    """The changes of one matrix, one entry for each set of adapters; a program points to them."""

    def __init__(self, num_sets: int) -> None:
        self.array = (native.Delta * num_sets)()
        self._references: list[Any] = [None] * num_sets

    def __len__(self) -> int:
        return len(self._references)

    def set(self, number: int, delta: Delta | None) -> None:
        """Set or, with None, empty an entry; not while a program runs."""
        if delta is None:
            self.array[number], self._references[number] = native.Delta(), None
            return
        parts = (native.LowRank * len(delta.parts))()
        stored = [part.b if part.a is None else part.b.t().contiguous() for part in delta.parts]
        for part, b, found in zip(delta.parts, stored, parts, strict=True):
            found.first, found.columns = part.first, len(part.b)
            found.b = FloatMatrix(b).struct
            if part.a is not None:
                found.rank, found.a = len(part.a), FloatMatrix(part.a).struct
        self._references[number] = (delta, stored, parts)
        self.array[number] = native.Delta(
            num_parts=len(parts),
            rank=delta.rank,
            parts=parts,
            gain=_address(delta.gain),
            offset=_address(delta.offset),
        )


class EmbeddingRows:
    """Rows that replace looked-up embeddings in a batch of `num_tokens`."""

    def __init__(self, num_tokens: int) -> None:
        self.pointers = (ctypes.c_void_p * num_tokens)()
        self._references: list[Tensor] = []

    def set(self, first: int, rows: Tensor) -> None:
        """Set the tokens from `first` on; `rows` fp32 [n, columns]."""
        rows = rows.contiguous()
        self._references.append(rows)
        for i in range(len(rows)):
            self.pointers[first + i] = rows[i].data_ptr()


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
