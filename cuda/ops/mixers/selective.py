"""Mamba's recurrence: `kernels/mixers/selective_*.cu`."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec
from swiftchat.cuda.ops.mixers.scans import ScanRows
from swiftchat.cuda.ops.mixers.steps import StepSlots

_THREADS, _CHANNELS = 128, 32  # of a block
_VECTOR = 16  # elements of a state for each vector
_VECTORS = (1, 2, 4)

_INPUTS = (
    "pointer x, pointer steps, pointer b, pointer c, pointer gates, pointer decay, "
    "pointer step_bias, pointer skip, pointer states, "
)
_SIZES = "int64 vectors_stride, int64 gates_stride, int width, int state_size, int slots_stride"


def _defines(dtype: torch.dtype, state_size: int) -> dict[str, str]:
    vectors = next(each for each in _VECTORS if state_size <= _VECTOR * each)
    return {"DTYPE": DTYPE_NAMES[dtype], "VECTORS": str(vectors)}


def _step_spec(dtype: torch.dtype, state_size: int, chained: bool) -> KernelSpec:
    rows = "pointer slots, pointer step, pointer positions, pointer out, "
    arguments = f"{_INPUTS}{rows}{_SIZES}, int early_reads"
    defines = _defines(dtype, state_size) | {"CHAINED": str(int(chained))}
    return KernelSpec("selective_step", arguments, defines)


def _scan_spec(dtype: torch.dtype, state_size: int) -> KernelSpec:
    rows = "pointer starts, pointer slots, pointer positions, pointer out, "
    return KernelSpec("selective_scan", f"{_INPUTS}{rows}{_SIZES}", _defines(dtype, state_size))


VARIANTS = [
    spec(dtype, _VECTOR * vectors)
    for spec in (partial(_step_spec, chained=False), partial(_step_spec, chained=True), _scan_spec)
    for dtype in DTYPE_NAMES
    for vectors in _VECTORS
]


def selective_fits(state_size: int) -> bool:
    """Return whether the kernels compute states of this size."""
    return state_size % 4 == 0 and 0 < state_size <= _VECTOR * _VECTORS[-1]


@dataclass(frozen=True)
class SelectiveInputs:
    """What the recurrence reads of n tokens.

    `x` and `steps` are fp32 [n, width], `b` and `c` fp32 [n, state_size] with rows equally far
    apart, `gates` T [n, width], whose rows need not be adjacent either.
    """

    x: Tensor
    steps: Tensor
    b: Tensor
    c: Tensor
    gates: Tensor

    def arguments(self, gpu: Gpu, state_size: int) -> dict[str, Any]:
        """Check the tensors; return the arguments of a kernel."""
        n, width = self.x.shape
        check_tensor("x", self.x, (n, width), "float32", gpu)
        check_tensor("steps", self.steps, (n, width), "float32", gpu)
        _check_rows("b", self.b, (n, state_size), torch.float32, gpu)
        _check_rows("c", self.c, (n, state_size), torch.float32, gpu)
        _check_rows("gates", self.gates, (n, width), self.gates.dtype, gpu)
        if n > 1 and self.b.stride(0) != self.c.stride(0):
            raise ValueError(f"rows of b and c are {self.b.stride(0)} and {self.c.stride(0)} apart")
        return {
            "x": self.x,
            "steps": self.steps,
            "b": self.b,
            "c": self.c,
            "gates": self.gates,
            "vectors_stride": self.b.stride(0),
            "gates_stride": self.gates.stride(0),
        }


@dataclass(frozen=True)
class SelectiveWeights:
    """The constants of a layer: `decay` fp32 [width, state_size], the others fp32 [width]."""

    decay: Tensor
    step_bias: Tensor
    skip: Tensor

    def arguments(self, gpu: Gpu) -> dict[str, Tensor]:
        """Check the tensors; return the arguments of a kernel."""
        width, state_size = self.decay.shape
        check_tensor("decay", self.decay, (width, state_size), "float32", gpu)
        check_tensor("step_bias", self.step_bias, (width,), "float32", gpu)
        check_tensor("skip", self.skip, (width,), "float32", gpu)
        return {"decay": self.decay, "step_bias": self.step_bias, "skip": self.skip}


def selective_step(
    gpu: Gpu,
    inputs: SelectiveInputs,
    weights: SelectiveWeights,
    out: Tensor,
    *,
    states: Tensor,
    rows: StepSlots,
) -> None:
    """Compute a token of Mamba's recurrence for each row, gated: `out` T [n, width].

    `states` fp32 [num_slots, width, state_size] are read and written by slot.
    """
    arguments = _arguments(gpu, inputs, weights, out, states) | rows.arguments(gpu)
    n, width = out.shape
    if n == 0:
        return
    gpu.kernel(_step_spec(out.dtype, states.shape[2], rows.chained))(
        (-(-width // _CHANNELS), n),
        _THREADS,
        num_bytes=2 * n * states[0].nbytes,
        **arguments,
    )


def selective_scan(
    gpu: Gpu,
    inputs: SelectiveInputs,
    weights: SelectiveWeights,
    out: Tensor,
    *,
    states: Tensor,
    rows: ScanRows,
) -> None:
    """Compute the tokens of each row with Mamba's recurrence, in order: `out` T [tokens, width].

    `states` are as in `selective_step`. Tokens of no row are left alone.
    """
    arguments = _arguments(gpu, inputs, weights, out, states)
    n, width = out.shape
    arguments |= rows.arguments(gpu, n)
    num_seqs = rows.slots.shape[1]
    if n == 0 or num_seqs == 0:
        return
    gpu.kernel(_scan_spec(out.dtype, states.shape[2]))(
        (-(-width // _CHANNELS), num_seqs),
        _THREADS,
        num_bytes=2 * inputs.x.nbytes + 2 * out.nbytes + 2 * num_seqs * states[0].nbytes,
        **arguments,
    )


def _arguments(
    gpu: Gpu, inputs: SelectiveInputs, weights: SelectiveWeights, out: Tensor, states: Tensor
) -> dict[str, Any]:
    num_slots, width, state_size = states.shape
    if not selective_fits(state_size):
        raise ValueError(f"the kernel does not take states of {state_size}")
    check_tensor("states", states, (num_slots, width, state_size), "float32", gpu)
    check_tensor("out", out, (len(inputs.x), width), inputs.gates.dtype, gpu)
    check_tensor("decay", weights.decay, (width, state_size), "float32", gpu)
    if inputs.x.shape[1] != width:
        raise ValueError(f"x must have {width} columns, not {inputs.x.shape[1]}")
    return {
        **inputs.arguments(gpu, state_size),
        **weights.arguments(gpu),
        "states": states,
        "out": out,
        "width": width,
        "state_size": state_size,
    }


def _check_rows(
    name: str, tensor: Tensor, shape: tuple[int, int], dtype: torch.dtype, gpu: Gpu
) -> None:
    """Raise `ValueError` unless the tensor has this shape and dtype, and adjacent columns."""
    if (
        tensor.shape != shape
        or tensor.dtype != dtype
        or tensor.device != gpu.device
        or tensor.stride(1) != 1
    ):
        raise ValueError(f"{name} must be {dtype} {list(shape)}, not {list(tensor.shape)}")
