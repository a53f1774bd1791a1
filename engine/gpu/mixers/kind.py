"""What the kernels of each kind of mixer have in common."""

from typing import Protocol

from torch import Tensor

from swiftchat.cuda.ops.mixers.scans import ScanRows
from swiftchat.cuda.ops.mixers.steps import StepSlots
from swiftchat.engine.model.mixer_weights import MixerInputs


class MixerKind(Protocol):
    """A mixer between the projections of its input and output.

    `projected` T [n, …] are the projections of the input, `out` T [n, width] is written. States are
    read and written by the slots of `rows`.
    """

    @property
    def scans(self) -> bool:
        """Whether there is a kernel for the tokens of prompts."""

    def step(self, projected: Tensor, out: Tensor, inputs: MixerInputs, rows: StepSlots) -> None:
        """Compute one token of each row."""

    def scan(self, projected: Tensor, out: Tensor, inputs: MixerInputs, rows: ScanRows) -> None:
        """Compute the tokens of each row in order; tokens of no row get any values."""


def present(tensor: Tensor | None) -> Tensor:
    """Return a weight that every mixer of its kind has."""
    assert tensor is not None
    return tensor
