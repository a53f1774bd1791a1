"""Matrices that one product reads together (q k v; gate up) and that are not in one form."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from swiftchat.cuda.packed_matrix import Matrix
from swiftchat.engine.linear import quantized
from swiftchat.engine.linear.plain import linear
from swiftchat.engine.linear.quantized import Weight, for_kernels, tensors_of


@dataclass(frozen=True)
class MergedWeight:
    """`parts` under each other, each in a form of its own, or plain; a `QuantizedWeight` itself."""

    parts: Sequence[Weight]

    @property
    def shape(self) -> tuple[int, int]:
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]

    @property
    def tensors(self) -> list[Tensor]:
        return [tensor for part in self.parts for tensor in tensors_of(part)]

    def product(self, x: Tensor) -> Tensor:
        return torch.cat([linear(x, part) for part in self.parts], 1)


def parts_of(weight: Weight) -> list[Matrix]:
    """What is multiplied with one by one on a GPU: the parts of one that is stacked, or itself."""
    parts = weight.parts if isinstance(weight, MergedWeight) else [weight]
    return [for_kernels(part) for part in parts]


def biases_of(parts: Sequence[Matrix], bias: Tensor | None) -> Sequence[Tensor | None]:
    """Each part's own of the bias, aligned to 16 bytes as kernels want it."""
    if bias is None:
        return [None] * len(parts)
    own = torch.split(bias, [part.shape[0] for part in parts])
    return [each.clone() if each.data_ptr() % 16 else each for each in own]


def reordered(weight: Weight, index: Tensor) -> Weight:
    """The rows of `weight` that `index` names, as `quantized.reordered`.

    Of one that is stacked, each part has to keep its rows: queries stay queries.
    """
    if not isinstance(weight, MergedWeight):
        return quantized.reordered(weight, index)
    parts, start = [], 0
    for part in weight.parts:
        rows = part.shape[0]
        own = index[start : start + rows] - start
        if own.min() < 0 or own.max() >= rows:
            raise ValueError("rows of one part of a stacked matrix belong to another")
        parts.append(quantized.reordered(part, own))
        start += rows
    return MergedWeight(parts)
