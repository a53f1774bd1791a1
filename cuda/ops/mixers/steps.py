"""Decode steps of token mixers with a state: `kernels/mixers/`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu

MAX_TAPS = 4  # of a convolution
_MAMBA_THREADS, _MAMBA_ROWS = 256, 32  # threads and rows of a head's state in a block
_MAMBA_STATE = 128  # elements of a row of the state in a warp's registers, for each vector
_CONV_THREADS = 128
# Threads of a block and vectors of 4 columns of each: a group uses the first layout that holds it.
NORM_LAYOUTS = ((32, 1), (32, 2), (512, 2), (512, 4), (512, 8))


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

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a kernel; raise `ValueError` for more rows than slots."""
        max_rows = self.slots.shape[1]
        if len(self.positions) > max_rows:
            raise ValueError(f"{len(self.positions)} rows, but slots for {max_rows}")
        return {
            "slots": self.slots,
            "step": self.step,
            "positions": self.positions,
            "early_reads": self.early_reads,
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
    _, num_heads, head_dim, state_size = states.shape
    (channels, taps), n, width = conv.shape, len(projected), num_heads * head_dim
    if not mamba2_step_fits(state_size, taps) or num_heads % num_groups:
        raise ValueError(f"the kernel does not take states of {state_size}, {taps} taps")
    if channels != width + 2 * num_groups * state_size:
        raise ValueError(f"{channels} channels do not fit {num_groups} groups")
    z_scale, x_scale, b_scale, c_scale, step_scale = scales
    kernel = gpu.kernel(
        "mamba2_step",
        DTYPE=projected.dtype,
        ACTIVATION=activation.upper(),
        FP32_OUT=out.dtype == torch.float32,
        VECTORS=-(-state_size // _MAMBA_STATE),
        CHAINED=rows.chained,
    )
    kernel(
        (num_heads * -(-head_dim // _MAMBA_ROWS), n),
        _MAMBA_THREADS,
        num_bytes=2 * n * states.nbytes // len(states),
        projected=projected,
        conv=conv,
        conv_bias=conv_bias,
        decay=decay,
        step_bias=step_bias,
        skip=skip,
        conv_states=conv_states,
        states=states,
        out=out,
        row_size=width + channels + num_heads,
        num_groups=num_groups,
        gated=gated,
        min_step=min_step,
        z_scale=z_scale,
        x_scale=x_scale,
        b_scale=b_scale,
        c_scale=c_scale,
        step_scale=step_scale,
        **rows.arguments(),
    )


def gated_norm_fits(group_size: int) -> bool:
    """Return whether the kernel normalizes groups of this size."""
    threads, vectors = NORM_LAYOUTS[-1]
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
    is_shared = len(weight) == group_size
    if gates is not None and gates.shape[1] < width:
        raise ValueError(f"gates must be rows of {width}, not {list(gates.shape)}")
    threads, vectors = next(each for each in NORM_LAYOUTS if 4 * each[0] * each[1] >= group_size)
    gpu.kernel("gated_norm", DTYPE=out.dtype, BLOCK=threads, VECTORS=vectors)(
        (n, num_groups),
        threads,
        num_bytes=x.nbytes + out.nbytes,
        x=x,
        weight=weight,
        gates=gates,
        out=out,
        group_size=group_size,
        weight_size=group_size if is_shared else width,
        weight_stride=0 if is_shared else group_size,
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
    is_gated = activation is None
    if taps > MAX_TAPS:
        raise ValueError(f"the kernel takes at most {MAX_TAPS} taps, not {taps}")
    if columns < channels * (3 if is_gated else 1):
        raise ValueError(f"{columns} columns do not fit {channels} channels")
    kernel = gpu.kernel(
        "causal_conv_step",
        DTYPE=projected.dtype,
        ACTIVATION=(activation or "none").upper(),
        GATED=is_gated,
        CHAINED=rows.chained,
    )
    moved = channels * (projected.itemsize + 8 * (taps - 1))
    kernel(
        (-(-channels // _CONV_THREADS), n),
        _CONV_THREADS,
        num_bytes=n * moved + out.nbytes,
        projected=projected,
        conv=conv,
        conv_bias=conv_bias,
        conv_states=conv_states,
        out=out,
        **rows.arguments(),
    )
