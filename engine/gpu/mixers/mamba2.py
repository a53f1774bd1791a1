"""Mamba-2 in kernels."""

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.mixers.scans import ScanRows, causal_conv, mamba2_scan, mamba2_scan_fits
from swiftchat.cuda.ops.mixers.steps import (
    StepSlots,
    gated_norm,
    mamba2_step,
)
from swiftchat.engine.gpu.mixers.kind import present
from swiftchat.engine.model.mixer_weights import MixerInputs, MixerWeights
from swiftchat.engine.reference.mixers.mamba2 import group_norm
from swiftchat.weights.architectures.parts.mixers import Mamba2


class Mamba2Kernels:
    """See `MixerKind`."""

    def __init__(self, gpu: Gpu, mixer: Mamba2, activation: str) -> None:
        self._gpu, self._mixer, self._activation = gpu, mixer, activation
        self.scans = mamba2_scan_fits(mixer.width, mixer.state_size)
        before, *scales = mixer.scales
        self._scales = tuple(before * scale for scale in scales)

    def step(self, projected: Tensor, out: Tensor, inputs: MixerInputs, rows: StepSlots) -> None:
        weights, (z, x, b, c, step) = inputs.weights, self._scales
        inner, gated = self._inner(out, weights)
        mamba2_step(
            self._gpu,
            projected,
            inner,
            conv=weights.conv,
            conv_bias=weights.conv_bias,
            decay=present(weights.decay),
            step_bias=present(weights.step_bias),
            skip=present(weights.skip),
            conv_states=inputs.states[0],
            states=inputs.states[1],
            rows=rows,
            num_groups=self._mixer.num_groups,
            activation=self._activation,
            gated=gated,
            min_step=self._mixer.min_step,
            scales=(z, x, b, c, step),
        )
        self._normalize(projected, inner, out, inputs)

    def scan(self, projected: Tensor, out: Tensor, inputs: MixerInputs, rows: ScanRows) -> None:
        weights, mixer, (z, x, b, c, step) = inputs.weights, self._mixer, self._scales
        mixed = torch.empty(len(projected), len(weights.conv), device=projected.device)
        causal_conv(
            self._gpu,
            projected,
            mixed,
            conv=weights.conv,
            conv_bias=weights.conv_bias,
            conv_states=inputs.states[0],
            rows=rows,
            first_column=mixer.width,
            activation=self._activation,
            scales=(x, b, c),
            scale_ends=(mixer.width, mixer.width + mixer.num_groups * mixer.state_size),
        )
        inner, gated = self._inner(out, weights)
        mamba2_scan(
            self._gpu,
            mixed,
            projected,
            inner,
            decay=present(weights.decay),
            step_bias=present(weights.step_bias),
            skip=present(weights.skip),
            states=inputs.states[1],
            rows=rows,
            num_groups=mixer.num_groups,
            gated=gated,
            min_step=mixer.min_step,
            z_scale=z,
            step_scale=step,
        )
        self._normalize(projected, inner, out, inputs)

    def _inner(self, out: Tensor, weights: MixerWeights) -> tuple[Tensor, bool]:
        """Return where the recurrence writes, fp32 if a norm follows, and whether it is gated."""
        if self._mixer.norm_eps is None or weights.norm is None:
            return out, True
        return torch.empty(out.shape, device=out.device), not self._mixer.gate_last

    def _normalize(
        self, projected: Tensor, inner: Tensor, out: Tensor, inputs: MixerInputs
    ) -> None:
        """Write the norm of the recurrence's outputs fp32 to `out`, if they are normalized."""
        mixer, norm = self._mixer, inputs.weights.norm
        if mixer.norm_eps is None or norm is None:
            return
        if mixer.ranks_per_group > 1:
            normed = group_norm(inner, norm, mixer, inputs.ranks)
            if mixer.gate_last:
                normed *= F.silu(projected[:, : mixer.width].float() * self._scales[0])
            out.copy_(normed)
            return
        gated_norm(
            self._gpu,
            inner,
            norm,
            out,
            num_groups=mixer.num_groups,
            eps=mixer.norm_eps,
            gates=projected if mixer.gate_last else None,
            gate_scale=self._scales[0],
        )
