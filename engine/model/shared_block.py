"""What a layer with a shared block of attention and MLP has of its own (see `SharedBlocks`)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from swiftchat.engine.linear.weight import LinearWeight

__all__ = ["LowRankChange", "SharedBlockWeights"]


@dataclass(frozen=True)
class LowRankChange:
    """Adds right · (left · x) to the result of a matmul: `left` [rank, in], `right` [out, rank]."""

    left: LinearWeight
    right: LinearWeight


@dataclass(frozen=True)
class SharedBlockWeights:
    """The norm of stream and embedding side by side [2 * hidden_size], and the layer's matrices.

    `out` [hidden_size, hidden_size] multiplies the block's output. The matrices of the block are
    in `LayerWeights`, the same objects in all layers with the block; changes are those of q, k and
    v, or one of gate and up together.
    """

    norm: Tensor
    out: LinearWeight
    qkv_changes: Sequence[LowRankChange] = ()
    gate_up_changes: Sequence[LowRankChange] = ()

    @property
    def matrices(self) -> Iterator[LinearWeight]:
        yield self.out
        for change in (*self.qkv_changes, *self.gate_up_changes):
            yield from (change.left, change.right)
