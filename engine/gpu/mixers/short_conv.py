"""LFM2's gated short convolution in kernels."""

from typing import Any

from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.mixers.scans import ScanRows, causal_conv
from swiftchat.cuda.ops.mixers.steps import StepSlots, causal_conv_step
from swiftchat.engine.model.mixer_weights import MixerInputs
from swiftchat.weights.architectures.parts.mixers import ShortConv


class ShortConvKernels:
    """See `MixerKind`."""

    def __init__(self, gpu: Gpu, mixer: ShortConv, activation: str) -> None:
        self._gpu = gpu
        self.scans = True

    def step(self, projected: Tensor, out: Tensor, inputs: MixerInputs, rows: StepSlots) -> None:
        causal_conv_step(self._gpu, projected, out, rows=rows, **_arguments(inputs))

    def scan(self, projected: Tensor, out: Tensor, inputs: MixerInputs, rows: ScanRows) -> None:
        causal_conv(self._gpu, projected, out, rows=rows, **_arguments(inputs))


def _arguments(inputs: MixerInputs) -> dict[str, Any]:
    weights = inputs.weights
    return {
        "conv": weights.conv,
        "conv_bias": weights.conv_bias,
        "conv_states": inputs.states[0],
    }
