"""Token mixers with a state over the tokens of prompts: `kernels/mixers/`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.mixers.gated_delta import num_columns
from swiftchat.cuda.ops.mixers.steps import MAX_TAPS

_CONV_THREADS, _CONV_TOKENS = 128, 16  # of a block
_SCAN_THREADS, _SCAN_ROWS = 128, 32  # threads, and rows or columns of a state, of a block
_VECTOR = 128  # elements of a key or of a row of Mamba-2's state, for each vector


@dataclass(frozen=True)
class ScanRows:
    """The sequences of a batch whose tokens are computed in order, and the slots of their states.

    Sequence i has the tokens `starts[i] : starts[i + 1]` of the batch, at most `max_num_tokens`.
    Its state is read from `slots[0, i]`, or is zero if its first token is at position 0, and
    written to `slots[1, i]`; without tokens none is. `starts`, `slots` [2, sequences] and
    `positions` of all tokens of the batch are int32.
    """

    starts: Tensor
    slots: Tensor
    positions: Tensor
    max_num_tokens: int

    @property
    def num_seqs(self) -> int:
        return self.slots.shape[1]

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a kernel."""
        return {"starts": self.starts, "slots": self.slots, "positions": self.positions}


def causal_conv(
    gpu: Gpu,
    projected: Tensor,
    out: Tensor,
    *,
    conv: Tensor,
    conv_bias: Tensor | None,
    conv_states: Tensor,
    rows: ScanRows,
    first_column: int = 0,
    activation: str | None = None,
    scales: tuple[float, float, float] = (1.0, 1.0, 1.0),
    scale_ends: tuple[int, int] = (0, 0),
) -> None:
    """Convolve the tokens of each row causally, channel by channel, after those before them.

    `projected` T [tokens, columns] has the inputs from `first_column` on, multiplied by `scales`:
    the first before channel `scale_ends[0]`, the second before `scale_ends[1]`, then the third.
    `out` is fp32 [tokens, channels], with the activation applied. Without one, the inputs are
    LFM2's b · x of b, c and x side by side, and `out` T is c times the convolution. `conv` is T
    [channels, taps], its bias T [channels] or None. `conv_states` fp32
    [num_slots, channels, taps - 1] are read and written by slot. Tokens of no row are left alone.
    """
    (channels, taps), (n, columns) = conv.shape, projected.shape
    is_gated = activation is None
    if taps > MAX_TAPS:
        raise ValueError(f"the kernel takes at most {MAX_TAPS} taps, not {taps}")
    if columns < first_column + channels * (3 if is_gated else 1) or (is_gated and first_column):
        raise ValueError(f"{columns} columns from {first_column} on do not fit {channels} channels")
    kernel = gpu.kernel(
        "causal_conv",
        DTYPE=projected.dtype,
        ACTIVATION=(activation or "none").upper(),
        GATED=is_gated,
    )
    tiles = -(-rows.max_num_tokens // _CONV_TOKENS) if n else 0
    kernel(
        (-(-channels // _CONV_THREADS), tiles, rows.num_seqs),
        _CONV_THREADS,
        num_bytes=n * channels * (projected.itemsize + out.itemsize),
        projected=projected,
        conv=conv,
        conv_bias=conv_bias,
        conv_states=conv_states,
        out=out,
        first_column=first_column,
        x_end=scale_ends[0],
        b_end=scale_ends[1],
        x_scale=scales[0],
        b_scale=scales[1],
        c_scale=scales[2],
        **rows.arguments(),
    )


def gated_delta_scan_fits(key_dim: int, value_dim: int) -> bool:
    """Return whether the kernel computes heads of these sizes."""
    return key_dim <= _VECTOR and key_dim % 4 == 0 and value_dim % 4 == 0


def gated_delta_scan(
    gpu: Gpu,
    mixed: Tensor,
    projected: Tensor,
    out: Tensor,
    *,
    decay: Tensor,
    step_bias: Tensor,
    states: Tensor,
    rows: ScanRows,
    num_key_heads: int,
    key_steps: Tensor | None = None,
) -> None:
    """Apply the gated delta rule to the tokens of each row, in order.

    `mixed` fp32 [tokens, channels] has queries, keys and values after the convolution; the last
    columns of `projected` T [tokens, …] are β and steps, as in `gated_delta_step`. `out` fp32
    [tokens, num_heads * value_dim] is not normalized yet. `states` fp32
    [num_slots, num_heads, key_dim, value_dim] are read and written by slot; `decay` and
    `step_bias` are fp32 [num_heads]. With `key_steps` each element of a key has a decay of its own,
    as in `gated_delta_step`.
    """
    num_slots, num_heads, key_dim, value_dim = states.shape
    (n, channels), values = mixed.shape, num_heads * value_dim
    if not gated_delta_scan_fits(key_dim, value_dim) or num_heads % num_key_heads:
        raise ValueError(f"the kernel does not take heads of {key_dim} by {value_dim}")
    if channels != 2 * num_key_heads * key_dim + values:
        raise ValueError(f"{channels} channels do not fit {num_key_heads} key heads")
    kernel = gpu.kernel("gated_delta_scan", DTYPE=projected.dtype, KEY_DECAYS=key_steps is not None)
    kernel(
        (num_heads * -(-value_dim // _SCAN_ROWS), rows.num_seqs if n else 0),
        _SCAN_THREADS,
        num_bytes=mixed.nbytes + out.nbytes + 2 * rows.num_seqs * states.nbytes // num_slots,
        mixed=mixed,
        projected=projected,
        key_steps=key_steps,
        decay=decay,
        step_bias=step_bias,
        states=states,
        out=out,
        num_key_heads=num_key_heads,
        row_size=num_columns(projected, states, channels, has_key_steps=key_steps is not None),
        **rows.arguments(),
    )


def mamba2_scan_fits(width: int, state_size: int) -> bool:
    """Return whether the kernel computes states of this size."""
    return width % 4 == 0 and state_size % 4 == 0 and state_size <= 2 * _VECTOR


def mamba2_scan(
    gpu: Gpu,
    mixed: Tensor,
    projected: Tensor,
    out: Tensor,
    *,
    decay: Tensor,
    step_bias: Tensor,
    skip: Tensor,
    states: Tensor,
    rows: ScanRows,
    num_groups: int,
    gated: bool,
    min_step: float = 0.0,
    z_scale: float = 1.0,
    step_scale: float = 1.0,
) -> None:
    """Compute the tokens of each row with Mamba-2, in order.

    `mixed` fp32 [tokens, channels] has x, b and c after the convolution; the first columns of
    `projected` T [tokens, …] are output gates z, the last ones steps, each multiplied by its scale,
    as in `mamba2_step`. `out` is T or fp32 [tokens, width], multiplied by silu(z) if `gated`.
    `states` fp32 [num_slots, num_heads, head_dim, state_size] are read and written by slot;
    `decay`, `step_bias` and `skip` are fp32 [num_heads].
    """
    num_slots, num_heads, head_dim, state_size = states.shape
    (n, channels), width = mixed.shape, num_heads * head_dim
    if not mamba2_scan_fits(width, state_size) or num_heads % num_groups:
        raise ValueError(f"the kernel does not take {width} rows of states of {state_size}")
    if channels != width + 2 * num_groups * state_size:
        raise ValueError(f"{channels} channels do not fit {num_groups} groups")
    kernel = gpu.kernel(
        "mamba2_scan",
        DTYPE=projected.dtype,
        FP32_OUT=out.dtype == torch.float32,
        VECTORS=-(-state_size // _VECTOR),
    )
    kernel(
        (num_heads * -(-head_dim // _SCAN_ROWS), rows.num_seqs if n else 0),
        _SCAN_THREADS,
        num_bytes=mixed.nbytes + out.nbytes + 2 * rows.num_seqs * states.nbytes // num_slots,
        mixed=mixed,
        projected=projected,
        decay=decay,
        step_bias=step_bias,
        skip=skip,
        states=states,
        out=out,
        row_size=width + channels + num_heads,
        num_groups=num_groups,
        gated=gated,
        min_step=min_step,
        z_scale=z_scale,
        step_scale=step_scale,
        **rows.arguments(),
    )
