"""Kimi Delta Attention in kernels; its small projections are fp32 GEMMs."""

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.mixers.gated_delta import gated_delta_step
from swiftchat.cuda.ops.mixers.scans import ScanRows, gated_delta_scan_fits
from swiftchat.cuda.ops.mixers.steps import StepSlots
from swiftchat.engine.comm.communicator import Communicator
from swiftchat.engine.gpu.mixers.delta_scan import scan_deltas
from swiftchat.engine.gpu.mixers.kind import present
from swiftchat.engine.model.mixer_weights import MixerWeights
from swiftchat.engine.model.state_cache import LayerStates
from swiftchat.weights.architectures.parts.mixers import KimiDelta


class KimiDeltaKernels:
    """See `MixerKind`."""

    def __init__(self, gpu: Gpu, mixer: KimiDelta, activation: str) -> None:
        self._gpu, self._mixer, self._activation = gpu, mixer, activation
        self.scans = gated_delta_scan_fits(mixer.head_dim, mixer.head_dim)

    def step(
        self,
        projected: Tensor,
        out: Tensor,
        weights: MixerWeights,
        states: LayerStates,
        rows: StepSlots,
        ranks: Communicator,
    ) -> None:
        steps, gates = self._steps_and_gates(projected, weights)
        gated_delta_step(
            self._gpu,
            projected,
            out,
            conv=weights.conv,
            decay=present(weights.decay).view(-1),
            step_bias=present(weights.step_bias),
            norm=present(weights.norm),
            conv_states=states[0],
            states=states[1],
            rows=rows,
            num_key_heads=self._mixer.num_heads,
            activation=self._activation,
            norm_eps=self._mixer.norm_eps,
            key_steps=steps,
            output_gates=gates,
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
        mixer, norm = self._mixer, present(weights.norm)
        steps, gates = self._steps_and_gates(projected, weights)
        inner = scan_deltas(
            self._gpu,
            projected,
            weights,
            states,
            rows,
            width=out.shape[1],
            num_key_heads=mixer.num_heads,
            activation=self._activation,
            key_steps=steps,
        )
        heads = inner.view(len(inner), mixer.num_heads, mixer.head_dim)
        normed = F.rms_norm(heads, norm.shape, norm, mixer.norm_eps)
        torch.mul(normed.view(inner.shape), gates.sigmoid_(), out=inner)
        out.copy_(inner)

    def _steps_and_gates(self, projected: Tensor, weights: MixerWeights) -> tuple[Tensor, Tensor]:
        """Return the steps of decays and the output gates, fp32 [n, width] each."""
        size = self._mixer.head_dim
        step, gate = projected[:, -2 * size :].float().chunk(2, 1)
        project_step, project_gate = present(weights.project_step), present(weights.project_gate)
        return F.linear(step, project_step), F.linear(gate, project_gate)
