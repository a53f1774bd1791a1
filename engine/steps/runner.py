"""Step runners: each computes the steps that it takes, and leaves others to the next one."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from torch import Tensor

from swiftchat.engine.schedule.batch import Batch
from swiftchat.engine.schedule.sequence import Row, Step


@dataclass(frozen=True)
class StepInputs:
    """A scheduled step, whose blocks are ready, and the seed of each row.

    With `needs_logits` the device must not sample. `proposes_next` tells whether the step after
    this one will have proposed tokens.
    """

    step: Step
    seeds: Sequence[int]
    block_size: int
    needs_logits: bool = False
    proposes_next: Callable[[], bool] = lambda: False

    @cached_property
    def batch(self) -> Batch:
        return Batch.pack(self.step.rows, self.block_size)


@dataclass(frozen=True)
class SampledStep:
    """The next tokens of each row, sampled on the device.

    Of a row with proposed tokens they are the accepted ones and the one after them. A negative
    token is for `sampling_error`.
    """

    rows: Sequence[Row]
    tokens: Sequence[list[int]]


@dataclass(frozen=True)
class StepLogits:
    """The logits of a step's batch, from which the host samples, as `Decoder.forward` returns them.

    They are valid until the next step.
    """

    logits: Tensor | None = None


class StepRunner(Protocol):
    """Computes steps of some kind."""

    def compute(self, inputs: StepInputs) -> SampledStep | StepLogits | None:
        """Compute a step; return None, without any effect on it, for one of another kind."""


def first_result(runners: Iterable[StepRunner], inputs: StepInputs) -> SampledStep | StepLogits:
    """Return what the first of the runners that takes a step makes of it."""
    for runner in runners:
        if (result := runner.compute(inputs)) is not None:
            return result
    raise AssertionError("the plain runner takes every step")
