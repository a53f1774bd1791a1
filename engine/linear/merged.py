"""Matrices that one linear layer multiplies with together (q k v; gate up) in several formats."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from swiftchat.cuda.packed_matrix import Matrix
from swiftchat.engine.linear.weight import LinearWeight


@dataclass(frozen=True)
class MergedWeight(LinearWeight):
    """`parts` one below the other, each in a format of its own."""

    parts: Sequence[LinearWeight]

    @property
    def shape(self) -> tuple[int, int]:
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.parts[0].dtype

    @property
    def description(self) -> str:
        return " + ".join(dict.fromkeys(part.description for part in self.parts))

    @property
    def tensors(self) -> list[Tensor]:
        return [tensor for part in self.parts for tensor in part.tensors]

    @property
    def kernel_matrices(self) -> Sequence[Matrix]:
        return [matrix for part in self.parts for matrix in part.kernel_matrices]

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        out = torch.cat([part.matmul(x) for part in self.parts], 1)
        return out if bias is None else out + bias

    def reordered(self, order: Tensor) -> Self:
        """Reorder the rows of every part; raises `ValueError` if a row changes its part."""
        parts, start = [], 0
        for part in self.parts:
            num_rows = part.shape[0]
            own = order[start : start + num_rows] - start
            if own.min() < 0 or own.max() >= num_rows:
                raise ValueError("a new order moves rows between the parts of a merged weight")
            parts.append(part.reordered(own))
            start += num_rows
        return replace(self, parts=parts)


def split_bias(bias: Tensor | None, matrices: Sequence[Matrix]) -> Sequence[Tensor | None]:
    """Return the bias of each matrix, aligned to 16 bytes as kernels require it.

    A bias of two axes has one row for each row of activations.
    """
    if bias is None:
        return [None] * len(matrices)
    biases = torch.split(bias, [matrix.shape[0] for matrix in matrices], -1)
    if bias.dim() == 2:
        return list(biases)
    return [each.clone() if each.data_ptr() % 16 else each for each in biases]
