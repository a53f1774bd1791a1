"""LFM2's gated short convolution in kernels."""

from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.mixers.scans import ScanRows, causal_conv
from swiftchat.cuda.ops.mixers.steps import StepSlots, causal_conv_step
from swiftchat.engine.comm.communicator import Communicator
from swiftchat.engine.model.mixer_weights import MixerWeights
from swiftchat.engine.model.state_cache import LayerStates
from swiftchat.weights.architectures.parts.mixers import ShortConv


class ShortConvKernels:
    """See `MixerKind`."""

    def __init__(self, gpu: Gpu, mixer: ShortConv, activation: str) -> None:
        self._gpu = gpu
        self.scans = True

    def step(
        self,
        projected: Tensor,
        out: Tensor,
        weights: MixerWeights,
        states: LayerStates,
        rows: StepSlots,
        ranks: Communicator,
    ) -> None:
        causal_conv_step(
            self._gpu,
            projected,
            out,
            conv=weights.conv,
            conv_bias=weights.conv_bias,
            conv_states=states[0],
            rows=rows,
        )

    def scan(
        self,
        projected: Tensor,
        out: Tensor,
        weights: MixerWeights,
        states: LayerStates,
        rows: ScanRows,
        ranks: Communicator,
    ) -> None:
        causal_conv(
            self._gpu,
            projected,
            out,
            conv=weights.conv,
            conv_bias=weights.conv_bias,
            conv_states=states[0],
            rows=rows,
        )
