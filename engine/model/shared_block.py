"""What a layer with a shared block of attention and MLP has of its own (see `SharedBlocks`)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from swiftchat.engine.linear.weight import LinearWeight

if TYPE_CHECKING:
    from swiftchat.engine.model.ops import Ops


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


def changed(ops: "Ops", out: Tensor, x: Tensor, changes: Sequence[LowRankChange]) -> Tensor:
    """Return the result of a matmul for x, with changes of the parts of its matrix."""
    if not changes:
        return out
    parts = [ops.linear(ops.linear(x, each.left, None), each.right, None) for each in changes]
    return ops.add(out, parts[0] if len(parts) == 1 else ops.join(parts))
