"""Mamba's recurrence: `kernels/mixers/selective_*.cu`."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.mixers.scans import ScanRows
from swiftchat.cuda.ops.mixers.steps import StepSlots

_THREADS, _CHANNELS = 128, 32  # of a block
_VECTOR = 16  # elements of a state for each vector
_VECTORS = (1, 2, 4)


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

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a kernel; raise `ValueError` for rows that are unevenly apart."""
        if len(self.b) > 1 and self.b.stride(0) != self.c.stride(0):
            raise ValueError(f"rows of b and c are {self.b.stride(0)} and {self.c.stride(0)} apart")
        return {
            "x": self.x,
            "steps": self.steps,
            "b": self.b,
            "c": self.c,
            "gates": self.gates,
        }


@dataclass(frozen=True)
class SelectiveWeights:
    """The constants of a layer: `decay` fp32 [width, state_size], the others fp32 [width]."""

    decay: Tensor
    step_bias: Tensor
    skip: Tensor

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a kernel."""
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
    n, width = out.shape
    vectors = _num_vectors(states.shape[2])
    gpu.kernel("selective_step", DTYPE=inputs.gates.dtype, VECTORS=vectors, CHAINED=rows.chained)(
        (-(-width // _CHANNELS), n),
        _THREADS,
        num_bytes=2 * n * states.nbytes // len(states),
        states=states,
        out=out,
        **inputs.arguments(),
        **weights.arguments(),
        **rows.arguments(),
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
    (n, width), num_seqs = out.shape, rows.num_seqs
    states_bytes = num_seqs * states.nbytes // len(states)
    gpu.kernel("selective_scan", DTYPE=inputs.gates.dtype, VECTORS=_num_vectors(states.shape[2]))(
        (-(-width // _CHANNELS), num_seqs if n else 0),
        _THREADS,
        num_bytes=2 * (inputs.x.nbytes + out.nbytes + states_bytes),
        states=states,
        out=out,
        **inputs.arguments(),
        **weights.arguments(),
        **rows.arguments(),
    )


def _num_vectors(state_size: int) -> int:
    """Return the vectors of a state; raise `ValueError` if the kernels do not take it."""
    if not selective_fits(state_size):
        raise ValueError(f"the kernels do not take states of {state_size}")
    return next(vectors for vectors in _VECTORS if state_size <= _VECTOR * vectors)
