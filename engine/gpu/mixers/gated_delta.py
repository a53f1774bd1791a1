"""Gated DeltaNet in kernels."""

from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.mixers.gated_delta import gated_delta_step
from swiftchat.cuda.ops.mixers.scans import ScanRows, gated_delta_scan_fits
from swiftchat.cuda.ops.mixers.steps import StepSlots, gated_norm
from swiftchat.engine.comm.communicator import Communicator
from swiftchat.engine.gpu.mixers.delta_scan import scan_deltas
from swiftchat.engine.gpu.mixers.kind import present
from swiftchat.engine.model.mixer_weights import MixerWeights
from swiftchat.engine.model.state_cache import LayerStates
from swiftchat.weights.architectures.parts.mixers import GatedDelta


class GatedDeltaKernels:
    """See `MixerKind`."""

    def __init__(self, gpu: Gpu, mixer: GatedDelta, activation: str) -> None:
        self._gpu, self._mixer, self._activation = gpu, mixer, activation
        self.scans = gated_delta_scan_fits(mixer.key_dim, mixer.value_dim)

    def step(
        self,
        projected: Tensor,
        out: Tensor,
        weights: MixerWeights,
        states: LayerStates,
        rows: StepSlots,
        ranks: Communicator,
    ) -> None:
        gated_delta_step(
            self._gpu,
            projected,
            out,
            conv=weights.conv,
            decay=present(weights.decay),
            step_bias=present(weights.step_bias),
            norm=present(weights.norm),
            conv_states=states[0],
            states=states[1],
            rows=rows,
            num_key_heads=self._mixer.num_key_heads,
            activation=self._activation,
            norm_eps=self._mixer.norm_eps,
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
        mixer = self._mixer
        inner = scan_deltas(
            self._gpu,
            projected,
            weights,
            states,
            rows,
            width=out.shape[1],
            num_key_heads=mixer.num_key_heads,
            activation=self._activation,
        )
        gated_norm(
            self._gpu,
            inner,
            present(weights.norm),
            out,
            num_groups=mixer.num_value_heads,
            eps=mixer.norm_eps,
            gates=projected[:, len(weights.conv) :],
        )
