"""Matmul of up to 16 activation rows, fused with neighboring operations: `kernels/linear/`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.linear import row_changes
from swiftchat.cuda.ops.linear.layout import (
    M_TILE,
    MAX_GEMV_ROWS,
    MAX_SPLITS,
    THREADS,
    Layout,
    box_rows_of,
    compiled_rows,
    linear_fits,
)
from swiftchat.cuda.ops.linear.row_changes import RowChanges, narrow_elements
from swiftchat.cuda.ops.linear.variants import linear_macros
from swiftchat.cuda.packed_matrix import Matrix, PackedMatrix, storage
from swiftchat.cuda.peer_memory import PeerBuffer

MAX_ROPE_HEAD_DIM = 256  # of `linear_rope_cache`
_SPLITTABLE = ("RESIDUAL", "SEND")
# The rotary arguments of the kernels without rotary embedding.
_NO_ROPE: dict[str, Any] = {"num_heads": 0, "num_kv_heads": 0, "log2_block_size": 0}


@dataclass(frozen=True)
class Norm:
    """RMSNorm of the input; `weight` [k] has the matmul weight's dtype, plus `weight_offset`."""

    weight: Tensor
    eps: float
    weight_offset: float = 0.0


@dataclass(frozen=True)
class RopeCache:
    """Rotary angles, and the cache that takes the keys and values of a merged q/k/v matmul.

    `cos_sin` fp32 [max_positions, head_dim], cosines in the first half; `positions` and
    `slot_mapping` int32 [n]; `cache` [num_blocks, 2 * num_kv_heads, block_size, head_dim]. A row
    with a slot below 0 is not stored.
    """

    cos_sin: Tensor
    positions: Tensor
    slot_mapping: Tensor
    cache: Tensor
    num_heads: int

    def arguments(self, first_head: int) -> dict[str, Any]:
        """Return the kernel's arguments for a weight that begins with this head."""
        _, twice_kv_heads, block_size, _ = self.cache.shape
        return {
            "cos_sin": self.cos_sin,
            "positions": self.positions,
            "slot_mapping": self.slot_mapping,
            "cache": self.cache,
            # The kernel counts heads from the weight's first. If that is a value head, the number
            # of query heads is negative, and the kernel still finds the rows of the cache.
            "num_heads": self.num_heads - first_head,
            "query_heads": self.num_heads,
            "num_kv_heads": twice_kv_heads // 2,
            "log2_block_size": block_size.bit_length() - 1,
        }


class Workspace:
    """Partial sums of split matmuls with up to `max_m` weight rows; reusable after every call."""

    def __init__(self, gpu: Gpu, max_m: int) -> None:
        self.partial_sums = torch.empty(MAX_SPLITS * MAX_GEMV_ROWS * max_m, device=gpu.device)
        self.counters = torch.zeros(-(-max_m // M_TILE), dtype=torch.int32, device=gpu.device)

    def has_counters(self, m: int) -> bool:
        """Return whether there is a counter for each tile of m weight rows."""
        return self.counters.numel() * M_TILE >= m


@dataclass(frozen=True)
class LinearInput:
    """What a weight [m, k] is multiplied with, and what is added to the results.

    `x` is [n, k] of the weight's dtype, or with `norm` fp32. `bias` is [m], or [n, m] with one for
    each row; `changes` are added, too. With a packed weight, rows of `x` may be multiplied by
    `x_scale` fp32 [n].
    """

    x: Tensor
    norm: Norm | None = None
    bias: Tensor | None = None
    changes: RowChanges | None = None
    x_scale: Tensor | None = None


def linear(
    gpu: Gpu, inputs: LinearInput, weight: Matrix, out: Tensor, workspace: Workspace
) -> None:
    """Write x · weightᵀ to out [n, m], of the weight's dtype or fp32."""
    fp32_out = out.dtype == torch.float32 and weight.dtype != torch.float32
    options = {"epilogue": "STORE", "fp32_out": fp32_out}
    _launch(gpu, inputs, weight, out, workspace, options)


def linear_residual(
    gpu: Gpu, inputs: LinearInput, weight: Matrix, residual: Tensor, workspace: Workspace
) -> None:
    """Add x · weightᵀ to the fp32 residual stream [n, m] in place; without a norm of x."""
    _launch(gpu, inputs, weight, residual, workspace, {"epilogue": "RESIDUAL"})


def linear_send(
    gpu: Gpu, inputs: LinearInput, weight: Matrix, buffer: PeerBuffer, workspace: Workspace
) -> None:
    """Write x · weightᵀ in fp32 to every rank's peer buffer, as this rank's part."""
    buffer.check_capacity(len(inputs.x) * len(weight))
    _launch(gpu, inputs, weight, buffer.addresses, workspace, {"epilogue": "SEND"})


def linear_act_and_mul(
    gpu: Gpu,
    inputs: LinearInput,
    weight: Matrix,
    out: Tensor,
    workspace: Workspace,
    *,
    activation: str,
) -> None:
    """Write activation(gate) * up to out [n, m / 2]; the weight's rows are gate's, then up's."""
    m = len(weight)
    if m % 2:
        raise ValueError(f"gate and up must have the same number of rows, not {m} together")
    options = {"epilogue": "ACT_AND_MUL", "activation": activation}
    _launch(gpu, inputs, weight, out, workspace, options, pair_span=m)


def linear_rope_cache(
    gpu: Gpu,
    inputs: LinearInput,
    weight: Matrix,
    queries: Tensor,
    workspace: Workspace,
    *,
    rope: RopeCache,
    first_head: int = 0,
) -> None:
    """Compute a merged q/k/v matmul with rotary embedding.

    Writes rotated queries to `queries` [n, num_heads, head_dim], rotated keys and the values to
    the cache. Rotates the two halves of whole heads, in fp32. The weight may have only some of the
    heads of queries, keys and values, from `first_head` on, but all queries or none.
    """
    num_heads = rope.num_heads
    num_kv_heads, head_dim = rope.cache.shape[1] // 2, rope.cache.shape[3]
    if head_dim % 8 or head_dim > MAX_ROPE_HEAD_DIM:
        most = MAX_ROPE_HEAD_DIM
        raise ValueError(f"head_dim must be a multiple of 8 up to {most}, not {head_dim}")
    end_head, rest = divmod(len(weight), head_dim)
    end_head += first_head
    all_or_none = (first_head == 0 and end_head >= num_heads) or first_head >= num_heads
    if rest or not all_or_none or end_head > num_heads + 2 * num_kv_heads:
        raise ValueError(
            f"the weight's rows from head {first_head} on must be whole heads of "
            f"{num_heads} + 2 × {num_kv_heads}"
        )
    options, arguments = {"epilogue": "ROPE_CACHE"}, rope.arguments(first_head)
    _launch(gpu, inputs, weight, queries, workspace, options, pair_span=head_dim, rope=arguments)


def _launch(
    gpu: Gpu,
    inputs: LinearInput,
    weight: Matrix,
    out: Tensor,
    workspace: Workspace,
    options: dict[str, Any],
    *,
    pair_span: int = M_TILE,
    rope: dict[str, Any] = _NO_ROPE,
) -> None:
    """Launch the kernel of these options of `linear_macros`."""
    x, norm, bias, changes = inputs.x, inputs.norm, inputs.bias, inputs.changes
    n, (m, k) = len(x), weight.shape
    splittable = options["epilogue"] in _SPLITTABLE and norm is None
    has_changes = changes is not None
    if not linear_fits(
        gpu, n, weight, splittable=splittable, pair_span=pair_span, has_changes=has_changes
    ):
        raise ValueError(f"linear does not take {n} activation rows of {k} elements")
    elements, row_scale = storage(weight)
    if isinstance(weight, PackedMatrix):
        options = {**options, "scheme": weight.scheme, "group_size": weight.group_size}
    elif inputs.x_scale is not None:
        raise ValueError("x_scale is only for packed weights")
    layout = Layout.of(
        gpu,
        n,
        weight,
        has_norm=norm is not None,
        has_changes=has_changes,
    )
    if layout.num_splits > 1:
        partial_sums = layout.num_splits * n * m
        if workspace.partial_sums.numel() < partial_sums or not workspace.has_counters(m):
            raise ValueError(
                f"the workspace is too small for {m} rows in {layout.num_splits} splits"
            )
    row_bias = bias is not None and bias.dim() == 2
    together = layout.num_splits * layout.cluster
    num_blocks = gpu.num_sms // together * together
    box_rows = box_rows_of(pair_span)
    low_rank = row_changes.NONE
    if changes is not None:
        low_rank = changes.arguments(n, k, num_blocks, narrow_elements(compiled_rows(n)))
    macros = linear_macros(
        weight.dtype,
        n,
        norm=norm is not None,
        row_bias=row_bias,
        low_rank=has_changes,
        cluster=layout.cluster,
        **options,
    )
    gpu.kernel("linear", **macros)(
        num_blocks,
        THREADS,
        shared_bytes=layout.shared_bytes,
        num_bytes=weight.nbytes,
        cluster=layout.cluster,
        **layout.maps(gpu, x, weight, box_rows),
        weight=elements,
        bias=bias,
        x=x,
        norm_weight=norm.weight if norm else None,
        out=out,
        eps=norm.eps if norm else 0.0,
        weight_offset=norm.weight_offset if norm else 0.0,
        n=n,
        m=m,
        k=k,
        pair_span=pair_span,
        num_splits=layout.num_splits,
        num_stages=layout.num_stages,
        partial_sums=workspace.partial_sums,
        counters=workspace.counters,
        **rope,
        row_scale=row_scale,
        x_scale=inputs.x_scale,
        box_rows=box_rows,
        **low_rank,
    )
