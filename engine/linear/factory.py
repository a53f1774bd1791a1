"""What makes the weights of each device."""

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor

from swiftchat.engine.linear.grouped_cpu import Int4Weight, Int8GroupsWeight
from swiftchat.engine.linear.merged import MergedWeight
from swiftchat.engine.linear.plain import PlainWeight
from swiftchat.engine.linear.row_scaled_cpu import Float8Weight, Int8Weight
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.weights.quantization.scheme import (
    Float8,
    GgufBlocks,
    Int4,
    Int8,
    Int8Groups,
    QuantizedMatrix,
)

_CPU_WEIGHTS: Mapping[
    type[QuantizedMatrix], Callable[[Sequence[Any], torch.dtype], LinearWeight | None]
] = MappingProxyType(
    {
        Int4: Int4Weight.from_parts,
        Int8: Int8Weight.from_parts,
        Int8Groups: Int8GroupsWeight.from_parts,
        Float8: Float8Weight.from_parts,
    }
)


class WeightFactory(Protocol):
    """Makes the weights of one device."""

    keeps_quantized: bool  # else quantized matrices are dequantized when they are loaded

    @property
    def blocks(self) -> "BlockFactory | None":
        """What makes weights of GGUF's own blocks, or None."""

    def quantizes_activations(self, dtype: torch.dtype) -> bool:
        """Whether W8A8 models get 8-bit activations, instead of more exact ones of `dtype`."""

    def plain(self, tensor: Tensor) -> LinearWeight: ...
    def quantized(
        self, parts: Sequence[QuantizedMatrix], dtype: torch.dtype
    ) -> LinearWeight | None:
        """Return the parts one below the other as one weight for activations of `dtype`.

        None if they differ in scheme, or if no class computes with them.
        """

    def merged(self, parts: Sequence[LinearWeight]) -> LinearWeight: ...

    @property
    def mxfp4(self) -> "Mxfp4Factory | None":
        """What makes weights of MXFP4 experts for 16-bit activations, or None."""


class Mxfp4Factory(Protocol):
    """Makes weights of MXFP4 matrices as they are in a file."""

    def from_mxfp4(
        self, blocks: Tensor, scales: Tensor, dtype: torch.dtype
    ) -> Sequence[LinearWeight]:
        """Return the matrices [experts, rows, groups, 16] with scales, uint8 on any device."""


class BlockFactory(Protocol):
    """Makes weights of ggml blocks as they are in a file."""

    block_types: Collection[str]  # the types that `from_blocks` takes

    def from_blocks(
        self, parts: Sequence[GgufBlocks], dtype: torch.dtype, on_packed: Callable[[], None]
    ) -> LinearWeight:
        """Return the parts one below the other as one weight for activations of `dtype`.

        Calls `on_packed` now and then, on any thread; blocks before may leave the memory. Raises
        `BadModelFile` if a scale is infinite or NaN.
        """


class TorchWeights:
    """Weights for torch's operators; on the CPU it may keep quantized ones."""

    blocks = None
    mxfp4 = None

    def __init__(self, *, keeps_quantized: bool) -> None:
        self.keeps_quantized = keeps_quantized

    def quantizes_activations(self, dtype: torch.dtype) -> bool:
        return True

    def plain(self, tensor: Tensor) -> LinearWeight:
        return PlainWeight(tensor)

    def quantized(
        self, parts: Sequence[QuantizedMatrix], dtype: torch.dtype
    ) -> LinearWeight | None:
        scheme = type(parts[0])
        if not self.keeps_quantized or any(type(part) is not scheme for part in parts):
            return None
        return _CPU_WEIGHTS[scheme](parts, dtype)

    def merged(self, parts: Sequence[LinearWeight]) -> LinearWeight:
        return MergedWeight(parts)


def weight_factory(device: torch.device) -> WeightFactory:
    """Return the factory of weights for torch's operators."""
    return TorchWeights(keeps_quantized=device.type == "cpu")
