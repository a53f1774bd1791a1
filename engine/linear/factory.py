"""What makes the weights of each device."""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol, Self

import torch
from torch import Tensor

from swiftchat.engine.linear.merged import MergedWeight
from swiftchat.engine.linear.plain import PlainWeight
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.weights.quantization.scheme import GgufBlocks, QuantizedMatrix


class WeightFactory(Protocol):
    """Makes the weights of one device."""

    keeps_quantized: bool  # else quantized matrices are dequantized when they are loaded
    quantizes_activations: bool  # of W8A8 models to 8 bits; else they are more exact

    @property
    def blocks(self) -> "BlockFactory | None":
        """What makes weights of GGUF's own blocks, or None."""

    def of(self, name: str) -> "WeightFactory":
        """Return what makes the weight of a checkpoint's tensor: usually this factory.

        Another one makes weights in main memory, of tensors that a GPU does not hold.
        """

    def plain(self, tensor: Tensor) -> LinearWeight: ...
    def quantized(
        self, parts: Sequence[QuantizedMatrix], dtype: torch.dtype
    ) -> LinearWeight | None:
        """Return the parts one below the other as one weight for activations of `dtype`.

        None if they differ in scheme, or if no class computes with them.
        """

    def merged(self, parts: Sequence[LinearWeight]) -> LinearWeight: ...


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
    """Weights for torch's operators: plain ones."""

    keeps_quantized = False
    quantizes_activations = True
    blocks = None

    def of(self, name: str) -> Self:
        return self

    def plain(self, tensor: Tensor) -> LinearWeight:
        return PlainWeight(tensor)

    def quantized(
        self, parts: Sequence[QuantizedMatrix], dtype: torch.dtype
    ) -> LinearWeight | None:
        return None

    def merged(self, parts: Sequence[LinearWeight]) -> LinearWeight:
        return MergedWeight(parts)
