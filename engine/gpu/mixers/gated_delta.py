"""Gated DeltaNet and Kimi Delta Attention in kernels; Kimi's small projections are fp32 GEMMs."""

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.mixers.gated_delta import gated_delta_step
from swiftchat.cuda.ops.mixers.scans import (
    ScanRows,
    causal_conv,
    gated_delta_scan,
    gated_delta_scan_fits,
)
from swiftchat.cuda.ops.mixers.steps import StepSlots, gated_norm
from swiftchat.engine.gpu.mixers.kind import present
from swiftchat.engine.model.mixer_weights import MixerInputs, MixerWeights
from swiftchat.weights.architectures.parts.mixers import GatedDelta, KimiDelta


class GatedDeltaKernels:
    """See `MixerKind`. Kimi's decays, one for each element of a key, come from `key_steps`."""

    def __init__(self, gpu: Gpu, mixer: GatedDelta | KimiDelta, activation: str) -> None:
        self._gpu, self._mixer, self._activation = gpu, mixer, activation
        self._num_heads, *sizes = mixer.states[1]
        self.scans = gated_delta_scan_fits(*sizes)

    @property
    def _num_key_heads(self) -> int:
        mixer = self._mixer
        return mixer.num_heads if isinstance(mixer, KimiDelta) else mixer.num_key_heads

    def step(self, projected: Tensor, out: Tensor, inputs: MixerInputs, rows: StepSlots) -> None:
        weights = inputs.weights
        key_steps, gates = self._key_steps_and_gates(projected, weights)
        gated_delta_step(
            self._gpu,
            projected,
            out,
            conv=weights.conv,
            decay=present(weights.decay).view(-1),
            step_bias=present(weights.step_bias),
            norm=present(weights.norm),
            conv_states=inputs.states[0],
            states=inputs.states[1],
            rows=rows,
            num_key_heads=self._num_key_heads,
            activation=self._activation,
            norm_eps=self._mixer.norm_eps,
            key_steps=key_steps,
            output_gates=gates,
        )

    def scan(self, projected: Tensor, out: Tensor, inputs: MixerInputs, rows: ScanRows) -> None:
        weights, norm = inputs.weights, present(inputs.weights.norm)
        key_steps, gates = self._key_steps_and_gates(projected, weights)
        n, device = len(projected), projected.device
        mixed = torch.empty(n, len(weights.conv), device=device)
        causal_conv(
            self._gpu,
            projected,
            mixed,
            conv=weights.conv,
            conv_bias=None,
            conv_states=inputs.states[0],
            rows=rows,
            activation=self._activation,
        )
        inner = torch.empty(n, out.shape[1], device=device)
        gated_delta_scan(
            self._gpu,
            mixed,
            projected,
            inner,
            decay=present(weights.decay).view(-1),
            step_bias=present(weights.step_bias),
            states=inputs.states[1],
            rows=rows,
            num_key_heads=self._num_key_heads,
            key_steps=key_steps,
        )
        if gates is not None:
            heads = inner.view(n, self._num_heads, -1)
            normed = F.rms_norm(heads, norm.shape, norm, self._mixer.norm_eps)
            torch.mul(normed.view(inner.shape), gates.sigmoid_(), out=inner)
            out.copy_(inner)
            return
        gated_norm(
            self._gpu,
            inner,
            norm,
            out,
            num_groups=self._num_heads,
            eps=self._mixer.norm_eps,
            gates=projected[:, len(weights.conv) :],
        )

    def _key_steps_and_gates(
        self, projected: Tensor, weights: MixerWeights
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return Kimi's steps of decays and output gates, fp32 [n, width] each."""
        if not isinstance(self._mixer, KimiDelta):
            return None, None
        step, gate = projected[:, -2 * self._mixer.head_dim :].float().chunk(2, 1)
        project_step, project_gate = present(weights.project_step), present(weights.project_gate)
        return F.linear(step, project_step), F.linear(gate, project_gate)
