"""Token mixers with a state over the tokens of prompts: `kernels/mixers/`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from swiftchat.cuda.checks import MAX_GRID_Y, check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec
from swiftchat.cuda.ops.layers.act_and_mul import KINDS
from swiftchat.cuda.ops.mixers.gated_delta import check_steps
from swiftchat.cuda.ops.mixers.steps import MAX_TAPS

_CONV_THREADS, _CONV_TOKENS = 128, 16  # of a block
_SCAN_THREADS, _SCAN_ROWS = 128, 32  # threads, and rows or columns of a state, of a block
_VECTOR = 128  # elements of a key or of a row of Mamba-2's state, for each vector

_ROWS = "pointer starts, pointer slots, pointer positions, pointer out, "


def _conv_spec(dtype: str, activation: str) -> KernelSpec:
    """Return the kernel of a plain convolution, or with activation "none" of a gated one."""
    arguments = (
        f"pointer projected, pointer conv, pointer conv_bias, pointer conv_states, {_ROWS}"
        "int num_channels, int row_size, int first_column, int taps, int slots_stride, int x_end, "
        "int b_end, float x_scale, float b_scale, float c_scale"
    )
    gated = str(int(activation == "none"))
    defines = {"DTYPE": dtype, "ACTIVATION": activation.upper(), "GATED": gated}
    return KernelSpec("causal_conv", arguments, defines)


def _delta_spec(dtype: str, key_decays: bool) -> KernelSpec:
    arguments = (
        "pointer mixed, pointer projected, pointer key_steps, pointer decay, pointer step_bias, "
        f"pointer states, {_ROWS}int num_key_heads, int num_heads, int key_dim, "
        "int value_dim, int row_size, int slots_stride"
    )
    defines = {"DTYPE": dtype, "KEY_DECAYS": str(int(key_decays))}
    return KernelSpec("gated_delta_scan", arguments, defines)


def _mamba2_spec(dtype: str, fp32_out: bool, vectors: int) -> KernelSpec:
    arguments = (
        "pointer mixed, pointer projected, pointer decay, pointer step_bias, pointer skip, "
        f"pointer states, {_ROWS}int num_heads, int head_dim, int num_groups, int state_size, "
        "int slots_stride, int gated, float min_step, float z_scale, float step_scale"
    )
    defines = {"DTYPE": dtype, "FP32_OUT": str(int(fp32_out)), "VECTORS": str(vectors)}
    return KernelSpec("mamba2_scan", arguments, defines)


VARIANTS = [
    *(_conv_spec(dtype, kind) for dtype in DTYPE_NAMES.values() for kind in ("none", *KINDS)),
    *(_delta_spec(dtype, each) for dtype in DTYPE_NAMES.values() for each in (False, True)),
    *(
        _mamba2_spec(dtype, fp32_out, vectors)
        for dtype in DTYPE_NAMES.values()
        for fp32_out in (False, True)
        for vectors in (1, 2)
    ),
]


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

    def arguments(self, gpu: Gpu, num_tokens: int) -> dict[str, Any]:
        """Check the tensors; return the arguments of a kernel for a batch of so many tokens."""
        num_seqs = self.slots.shape[1]
        check_tensor("starts", self.starts, (num_seqs + 1,), "int32", gpu)
        check_tensor("slots", self.slots, (2, num_seqs), "int32", gpu)
        check_tensor("positions", self.positions, (num_tokens,), "int32", gpu)
        if num_seqs > MAX_GRID_Y:
            raise ValueError(f"the kernels take at most {MAX_GRID_Y} sequences, not {num_seqs}")
        return {
            "starts": self.starts,
            "slots": self.slots,
            "positions": self.positions,
            "slots_stride": num_seqs,
        }


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
    is_gated, num_slots = activation is None, len(conv_states)
    if taps > MAX_TAPS:
        raise ValueError(f"the kernel takes at most {MAX_TAPS} taps, not {taps}")
    if columns < first_column + channels * (3 if is_gated else 1) or (is_gated and first_column):
        raise ValueError(f"{columns} columns from {first_column} on do not fit {channels} channels")
    dtype = projected.dtype
    check_tensor("projected", projected, (n, columns), dtype, gpu)
    check_tensor("out", out, (n, channels), dtype if is_gated else "float32", gpu)
    check_tensor("conv", conv, (channels, taps), dtype, gpu)
    check_tensor("conv_bias", conv_bias, (channels,), dtype, gpu)
    check_tensor("conv_states", conv_states, (num_slots, channels, taps - 1), "float32", gpu)
    arguments = rows.arguments(gpu, n)
    tiles, num_seqs = -(-rows.max_num_tokens // _CONV_TOKENS), rows.slots.shape[1]
    if tiles > MAX_GRID_Y:
        raise ValueError(f"the kernel takes at most {MAX_GRID_Y * _CONV_TOKENS} tokens of a row")
    if n == 0 or num_seqs == 0:
        return
    gpu.kernel(_conv_spec(DTYPE_NAMES[dtype], activation or "none"))(
        (-(-channels // _CONV_THREADS), tiles, num_seqs),
        _CONV_THREADS,
        num_bytes=n * channels * (dtype.itemsize + out.itemsize),
        projected=projected,
        conv=conv,
        conv_bias=conv_bias,
        conv_states=conv_states,
        out=out,
        num_channels=channels,
        row_size=columns,
        first_column=first_column,
        taps=taps,
        x_end=scale_ends[0],
        b_end=scale_ends[1],
        x_scale=scales[0],
        b_scale=scales[1],
        c_scale=scales[2],
        **arguments,
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
    check_tensor("mixed", mixed, (n, channels), "float32", gpu)
    check_steps(gpu, projected, channels, values, key_steps, step_bias, states)
    check_tensor("out", out, (n, values), "float32", gpu)
    check_tensor("decay", decay, (num_heads,), "float32", gpu)
    check_tensor("states", states, (num_slots, num_heads, key_dim, value_dim), "float32", gpu)
    arguments, num_seqs = rows.arguments(gpu, n), rows.slots.shape[1]
    if n == 0 or num_seqs == 0:
        return
    gpu.kernel(_delta_spec(DTYPE_NAMES[projected.dtype], key_steps is not None))(
        (num_heads * -(-value_dim // _SCAN_ROWS), num_seqs),
        _SCAN_THREADS,
        num_bytes=mixed.nbytes + out.nbytes + 2 * num_seqs * states[0].nbytes,
        mixed=mixed,
        projected=projected,
        key_steps=key_steps,
        decay=decay,
        step_bias=step_bias,
        states=states,
        out=out,
        num_key_heads=num_key_heads,
        num_heads=num_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        row_size=projected.shape[1],
        **arguments,
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
    dtype = projected.dtype
    if not mamba2_scan_fits(width, state_size) or num_heads % num_groups:
        raise ValueError(f"the kernel does not take {width} rows of states of {state_size}")
    if channels != width + 2 * num_groups * state_size:
        raise ValueError(f"{channels} channels do not fit {num_groups} groups")
    check_tensor("mixed", mixed, (n, channels), "float32", gpu)
    check_tensor("projected", projected, (n, width + channels + num_heads), dtype, gpu)
    check_tensor("out", out, (n, width), out.dtype, gpu)
    check_tensor("decay", decay, (num_heads,), "float32", gpu)
    check_tensor("step_bias", step_bias, (num_heads,), "float32", gpu)
    check_tensor("skip", skip, (num_heads,), "float32", gpu)
    check_tensor("states", states, (num_slots, num_heads, head_dim, state_size), "float32", gpu)
    if out.dtype not in (dtype, torch.float32):
        raise ValueError(f"out must be {dtype} or fp32, not {out.dtype}")
    arguments, num_seqs = rows.arguments(gpu, n), rows.slots.shape[1]
    if n == 0 or num_seqs == 0:
        return
    spec = _mamba2_spec(DTYPE_NAMES[dtype], out.dtype == torch.float32, -(-state_size // _VECTOR))
    gpu.kernel(spec)(
        (num_heads * -(-head_dim // _SCAN_ROWS), num_seqs),
        _SCAN_THREADS,
        num_bytes=mixed.nbytes + out.nbytes + 2 * num_seqs * states[0].nbytes,
        mixed=mixed,
        projected=projected,
        decay=decay,
        step_bias=step_bias,
        skip=skip,
        states=states,
        out=out,
        num_heads=num_heads,
        head_dim=head_dim,
        num_groups=num_groups,
        state_size=state_size,
        gated=int(gated),
        min_step=min_step,
        z_scale=z_scale,
        step_scale=step_scale,
        **arguments,
    )
