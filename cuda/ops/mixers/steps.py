"""Decode steps of token mixers with a state: `kernels/mixers/`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from swiftchat.cuda.checks import MAX_GRID_Y, check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec
from swiftchat.cuda.ops.layers.act_and_mul import KINDS

MAX_TAPS = 4  # of a convolution
_MAMBA_THREADS, _MAMBA_ROWS = 256, 32  # threads and rows of a head's state in a block
_MAMBA_STATE = 128  # elements of a row of the state in a warp's registers, for each vector
_CONV_THREADS = 128
# Threads of a block and vectors of 4 columns of each: a group uses the first layout that holds it.
_NORM_LAYOUTS = ((32, 1), (32, 2), (512, 2), (512, 4), (512, 8))

STATE_ARGUMENTS = (
    "pointer conv_states, pointer states, pointer slots, pointer step, pointer positions, "
    "pointer out, "
)


def _mamba2_spec(
    dtype: str, activation: str, fp32_out: bool, vectors: int, chained: bool
) -> KernelSpec:
    arguments = (
        "pointer projected, pointer conv, pointer conv_bias, pointer decay, pointer step_bias, "
        f"pointer skip, {STATE_ARGUMENTS}int num_heads, int head_dim, int num_groups, "
        "int state_size, int taps, int slots_stride, int gated, int early_reads, float min_step, "
        "float z_scale, float x_scale, float b_scale, float c_scale, float step_scale"
    )
    defines = {
        "DTYPE": dtype,
        "ACTIVATION": activation.upper(),
        "FP32_OUT": str(int(fp32_out)),
        "VECTORS": str(vectors),
        "CHAINED": str(int(chained)),
    }
    return KernelSpec("mamba2_step", arguments, defines)


def _norm_spec(dtype: str, layout: tuple[int, int]) -> KernelSpec:
    arguments = (
        "pointer x, pointer weight, pointer gates, pointer out, int width, int group_size, "
        "int weight_stride, int64 gates_stride, float gate_scale, float eps"
    )
    defines = {"DTYPE": dtype, "BLOCK": str(layout[0]), "VECTORS": str(layout[1])}
    return KernelSpec("gated_norm", arguments, defines)


def _conv_spec(dtype: str, activation: str, chained: bool) -> KernelSpec:
    """Return the kernel of a plain convolution, or with activation "none" of a gated one."""
    arguments = (
        "pointer projected, pointer conv, pointer conv_bias, pointer conv_states, pointer slots, "
        "pointer step, pointer positions, pointer out, int num_channels, int row_size, int taps, "
        "int slots_stride, int early_reads"
    )
    gated = str(int(activation == "none"))
    defines = {"DTYPE": dtype, "ACTIVATION": activation.upper(), "GATED": gated}
    defines["CHAINED"] = str(int(chained))
    return KernelSpec("causal_conv_step", arguments, defines)


VARIANTS = [
    *(
        _mamba2_spec(dtype, kind, fp32_out, vectors, chained)
        for dtype in DTYPE_NAMES.values()
        for kind in KINDS
        for fp32_out in (False, True)
        for vectors in (1, 2)
        for chained in (False, True)
    ),
    *(_norm_spec(dtype, layout) for dtype in DTYPE_NAMES.values() for layout in _NORM_LAYOUTS),
    *(
        _conv_spec(dtype, kind, chained)
        for dtype in DTYPE_NAMES.values()
        for kind in ("none", *KINDS)
        for chained in (False, True)
    ),
]


@dataclass(frozen=True)
class StepSlots:
    """The slots that a decode step reads the states of its rows from, and writes them to.

    Each step that `step` int64 [1] counts exchanges `slots` int32 [2, max_rows]; None means step 0,
    which reads `slots[0]`. Both slots of a row must differ; those of an unused row are below 0. A
    row at position 0 of `positions` int32 [n] begins with a state of zeros. `early_reads` promises
    that everything but the mixer's input was written before the current graph began.

    With `chained` a row may read the slot that the row before it writes: both are tokens of one
    sequence. No row may write the slot that the first of them reads.
    """

    slots: Tensor
    positions: Tensor
    step: Tensor | None = None
    early_reads: bool = False
    chained: bool = False

    def arguments(self, gpu: Gpu) -> dict[str, Any]:
        """Check the tensors; return the arguments of a kernel."""
        max_rows = self.slots.shape[1]
        check_tensor("slots", self.slots, (2, max_rows), "int32", gpu)
        check_tensor("step", self.step, (1,), "int64", gpu)
        check_tensor("positions", self.positions, (len(self.positions),), "int32", gpu)
        if len(self.positions) > max_rows:
            raise ValueError(f"{len(self.positions)} rows, but slots for {max_rows}")
        return {
            "slots": self.slots,
            "step": self.step,
            "positions": self.positions,
            "slots_stride": max_rows,
            "early_reads": int(self.early_reads),
        }


def mamba2_step_fits(state_size: int, taps: int) -> bool:
    """Return whether the kernel computes states of this size."""
    return taps <= MAX_TAPS and state_size % 4 == 0 and state_size <= 2 * _MAMBA_STATE


def mamba2_step(
    gpu: Gpu,
    projected: Tensor,
    out: Tensor,
    *,
    conv: Tensor,
    conv_bias: Tensor | None,
    decay: Tensor,
    step_bias: Tensor,
    skip: Tensor,
    conv_states: Tensor,
    states: Tensor,
    rows: StepSlots,
    num_groups: int,
    activation: str,
    gated: bool,
    min_step: float = 0.0,
    scales: tuple[float, float, float, float, float] = (1.0,) * 5,
) -> None:
    """Compute a token of Mamba-2 for each row, from its projections to its output.

    `projected` T [n, …] has output gates z, x, b, c and steps side by side, each multiplied by its
    scale of `scales`; `out` is T or fp32 [n, num_heads * head_dim], multiplied by silu(z) if
    `gated`. `states` fp32 [num_slots, num_heads, head_dim, state_size] and `conv_states` fp32
    [num_slots, channels, taps - 1] are read and written by slot. `conv` T [channels, taps] has a
    bias T [channels] or none; `decay`, `step_bias` and `skip` are fp32 [num_heads].
    """
    num_slots, num_heads, head_dim, state_size = states.shape
    (channels, taps), n, width = conv.shape, len(projected), num_heads * head_dim
    dtype = projected.dtype
    if not mamba2_step_fits(state_size, taps) or num_heads % num_groups:
        raise ValueError(f"the kernel does not take states of {state_size}, {taps} taps")
    if channels != width + 2 * num_groups * state_size:
        raise ValueError(f"{channels} channels do not fit {num_groups} groups")
    check_tensor("projected", projected, (n, width + channels + num_heads), dtype, gpu)
    check_tensor("out", out, (n, width), out.dtype, gpu)
    check_tensor("conv", conv, (channels, taps), dtype, gpu)
    check_tensor("conv_bias", conv_bias, (channels,), dtype, gpu)
    check_tensor("decay", decay, (num_heads,), "float32", gpu)
    check_tensor("step_bias", step_bias, (num_heads,), "float32", gpu)
    check_tensor("skip", skip, (num_heads,), "float32", gpu)
    check_tensor("conv_states", conv_states, (num_slots, channels, taps - 1), "float32", gpu)
    check_tensor("states", states, (num_slots, num_heads, head_dim, state_size), "float32", gpu)
    if out.dtype not in (dtype, torch.float32):
        raise ValueError(f"out must be {dtype} or fp32, not {out.dtype}")
    arguments = rows.arguments(gpu)
    if n == 0:
        return
    vectors = -(-state_size // _MAMBA_STATE)
    fp32_out = out.dtype == torch.float32
    z_scale, x_scale, b_scale, c_scale, step_scale = scales
    gpu.kernel(_mamba2_spec(DTYPE_NAMES[dtype], activation, fp32_out, vectors, rows.chained))(
        (num_heads * -(-head_dim // _MAMBA_ROWS), n),
        _MAMBA_THREADS,
        num_bytes=2 * n * states[0].nbytes,
        projected=projected,
        conv=conv,
        conv_bias=conv_bias,
        decay=decay,
        step_bias=step_bias,
        skip=skip,
        conv_states=conv_states,
        states=states,
        out=out,
        num_heads=num_heads,
        head_dim=head_dim,
        num_groups=num_groups,
        state_size=state_size,
        taps=taps,
        gated=int(gated),
        min_step=min_step,
        z_scale=z_scale,
        x_scale=x_scale,
        b_scale=b_scale,
        c_scale=c_scale,
        step_scale=step_scale,
        **arguments,
    )


def gated_norm_fits(group_size: int) -> bool:
    """Return whether the kernel normalizes groups of this size."""
    threads, vectors = _NORM_LAYOUTS[-1]
    return group_size % 4 == 0 and group_size <= 4 * vectors * threads


def gated_norm(
    gpu: Gpu,
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    num_groups: int,
    eps: float,
    gates: Tensor | None = None,
    gate_scale: float = 1.0,
) -> None:
    """Write the RMSNorm of each group of x fp32 [n, width] to `out` T [n, width].

    `weight` is fp32 [width], or [width / num_groups] for every group. With `gates` T [n, at least
    width] the result is multiplied by silu(gate_scale · gates) of the first columns; their rows
    need not be adjacent.
    """
    n, width = x.shape
    group_size = width // num_groups
    if width % num_groups or not gated_norm_fits(group_size):
        raise ValueError(f"the kernel does not take {num_groups} groups of {width} elements")
    check_tensor("x", x, (n, width), "float32", gpu)
    is_shared = len(weight) == group_size
    check_tensor("weight", weight, (group_size if is_shared else width,), "float32", gpu)
    check_tensor("out", out, (n, width), out.dtype, gpu)
    if num_groups > MAX_GRID_Y:
        raise ValueError(f"the kernel takes at most {MAX_GRID_Y} groups, not {num_groups}")
    if gates is not None and (
        gates.dtype != out.dtype
        or gates.device != gpu.device
        or len(gates) != n
        or gates.shape[1] < width
        or gates.stride(1) != 1
    ):
        raise ValueError(f"gates must be {out.dtype} rows of {width}, not {list(gates.shape)}")
    if n == 0:
        return
    layout = next(each for each in _NORM_LAYOUTS if 4 * each[0] * each[1] >= group_size)
    gpu.kernel(_norm_spec(DTYPE_NAMES[out.dtype], layout))(
        (n, num_groups),
        layout[0],
        num_bytes=x.nbytes + out.nbytes,
        x=x,
        weight=weight,
        gates=gates,
        out=out,
        width=width,
        group_size=group_size,
        weight_stride=0 if is_shared else group_size,
        gates_stride=0 if gates is None else gates.stride(0),
        gate_scale=gate_scale,
        eps=eps,
    )


def causal_conv_step(
    gpu: Gpu,
    projected: Tensor,
    out: Tensor,
    *,
    conv: Tensor,
    conv_bias: Tensor | None,
    conv_states: Tensor,
    rows: StepSlots,
    activation: str | None = None,
) -> None:
    """Convolve a token of each row causally, channel by channel, with those before it.

    The first columns of `projected` T [n, …] are the inputs, and `out` fp32 [n, channels] has the
    activation applied. Without one, the inputs are LFM2's b · x of b, c and x side by side, and
    `out` T is c times the convolution. `conv` is T [channels, taps], its bias T [channels] or None.
    `conv_states` fp32 [num_slots, channels, taps - 1] are read and written by slot.
    """
    (channels, taps), (n, columns) = conv.shape, projected.shape
    dtype, is_gated = projected.dtype, activation is None
    if taps > MAX_TAPS:
        raise ValueError(f"the kernel takes at most {MAX_TAPS} taps, not {taps}")
    if columns < channels * (3 if is_gated else 1):
        raise ValueError(f"{columns} columns do not fit {channels} channels")
    check_tensor("projected", projected, (n, columns), dtype, gpu)
    check_tensor("out", out, (n, channels), dtype if is_gated else "float32", gpu)
    check_tensor("conv", conv, (channels, taps), dtype, gpu)
    check_tensor("conv_bias", conv_bias, (channels,), dtype, gpu)
    check_tensor("conv_states", conv_states, (len(conv_states), channels, taps - 1), "float32", gpu)
    arguments = rows.arguments(gpu)
    if n == 0:
        return
    gpu.kernel(_conv_spec(DTYPE_NAMES[dtype], activation or "none", rows.chained))(
        (-(-channels // _CONV_THREADS), n),
        _CONV_THREADS,
        num_bytes=n * channels * dtype.itemsize + out.nbytes + 2 * n * conv_states[0].nbytes,
        projected=projected,
        conv=conv,
        conv_bias=conv_bias,
        conv_states=conv_states,
        out=out,
        num_channels=channels,
        row_size=columns,
        taps=taps,
        **arguments,
    )
