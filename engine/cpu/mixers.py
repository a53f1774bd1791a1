"""The operations of mixers with a state, for the native kernels."""

from ctypes import Structure
from dataclasses import dataclass

import torch
from torch import Tensor

from swiftchat.engine.cpu import native
from swiftchat.engine.cpu.native import Norm, NormKind
from swiftchat.engine.cpu.recorded_activations import CannotRecordError
from swiftchat.engine.cpu.references import References
from swiftchat.engine.model.mixer_weights import MixerWeights
from swiftchat.engine.model.state_cache import LayerStates
from swiftchat.weights.architectures.parts.mamba import Mamba
from swiftchat.weights.architectures.parts.mixers import GatedDelta, Mamba2, ShortConv, StateMixer

_UNIT_EPS = 1e-6  # of the lengths of keys and queries, as in engine/reference/mixers/gated_delta.py


@dataclass(frozen=True)
class NativeMixer:
    """The operations of a layer's mixer, without their buffers.

    `conv` reads the projections and, without a `scan`, writes the mixed rows [n, `width`]; else it
    is in place, and `scan` reads and writes them. `bias` is that of the projections.
    """

    width: int
    bias: Tensor | None
    conv: native.ConvOp
    scan: Structure | None = None


@dataclass(frozen=True)
class Parameters:
    """The weights of a layer's mixer in memory that `references` keeps alive, and its states."""

    weights: MixerWeights
    states: LayerStates
    references: References

    def mixer(self, kind: StateMixer, activation: native.Activation) -> NativeMixer:
        """Return the operations; raises `CannotRecordError` for a mixer without kernels."""
        bias = self.weights.project_in_bias
        match kind:
            case ShortConv():
                conv = self._conv(native.Activation.NONE)
                conv.gated = True
                return NativeMixer(kind.width, bias, conv)
            case GatedDelta():
                conv, width = self._conv(activation), kind.value_width
                return NativeMixer(width, bias, conv, self._delta(kind))
            case Mamba2():
                before, _, x, b, c, _ = kind.scales
                groups = kind.num_groups * kind.state_size
                sizes = torch.tensor([kind.width, groups, groups])
                scales = before * torch.tensor([x, b, c]).repeat_interleave(sizes)
                conv = self._conv(activation, scales)
                conv.first = kind.width
                # The bias is not scaled with the input.
                bias = bias if bias is None or before == 1.0 else bias.float() / before
                return NativeMixer(kind.width, bias, conv, self._mamba2(kind))
            case Mamba():
                return NativeMixer(kind.width, bias, self._conv(activation), self._mamba(kind))
        raise CannotRecordError("no kernel computes this kind of mixer")

    def _conv(self, activation: native.Activation, scales: Tensor | None = None) -> native.ConvOp:
        """Return the convolution; its channels are scaled.

        Its state has the sizes of torch's in another order: the channels of each token together.
        """
        scaled = self.weights.conv.float().t()
        weight = self.references.keep((scaled if scales is None else scaled * scales).contiguous())
        return native.ConvOp(
            kernel=len(weight),
            channels=weight.shape[1],
            activation=activation,
            weight=weight.data_ptr(),
            bias=self.references.floats(self.weights.conv_bias),
            state=self.states[0].data_ptr(),
        )

    def _delta(self, kind: GatedDelta) -> native.GatedDeltaOp:
        return native.GatedDeltaOp(
            num_key_heads=kind.num_key_heads,
            num_value_heads=kind.num_value_heads,
            key_dim=kind.key_dim,
            value_dim=kind.value_dim,
            beta_scale=kind.beta_scale,
            q_norm=self._unit_norm(kind.key_dim, kind.key_dim**-0.5),
            k_norm=self._unit_norm(kind.key_dim, 1.0),
            norm=Norm(NormKind.RMS, kind.norm_eps, self.references.floats(self.weights.norm)),
            decay=self.references.floats(self.weights.decay),
            step_bias=self.references.floats(self.weights.step_bias),
            state=self.states[1].data_ptr(),
        )

    def _mamba2(self, kind: Mamba2) -> native.Mamba2Op:
        before, z, _, _, _, step = kind.scales
        weight = self.references.floats(self.weights.norm)
        has_norm = kind.norm_eps is not None and weight is not None
        return native.Mamba2Op(
            num_heads=kind.num_heads,
            head_dim=kind.head_dim,
            num_groups=kind.num_groups,
            state_size=kind.state_size,
            gate_last=kind.gate_last,
            min_step=kind.min_step,
            z_scale=before * z,
            step_scale=before * step,
            norm=Norm(NormKind.RMS if has_norm else NormKind.NONE, kind.norm_eps or 0.0, weight),
            decay=self.references.floats(self.weights.decay),
            step_bias=self.references.floats(self.weights.step_bias),
            skip=self.references.floats(self.weights.skip),
            state=self.states[1].data_ptr(),
        )

    def _mamba(self, kind: Mamba) -> native.MambaOp:
        weights, floats = self.weights, self.references.floats
        decay = weights.decay
        assert decay is not None

        def norm(weight: Tensor | None, width: int) -> Norm:
            if kind.norm_eps is None:
                return Norm(NormKind.NONE)
            present = torch.ones(width) if weight is None else weight
            return Norm(NormKind.RMS, kind.norm_eps, floats(present))

        return native.MambaOp(
            width=kind.width,
            state_size=kind.state_size,
            step_rank=kind.step_rank,
            step_norm=norm(weights.step_norm, kind.step_rank),
            b_norm=norm(weights.b_norm, kind.state_size),
            c_norm=norm(weights.c_norm, kind.state_size),
            to_parts=floats(weights.project_x),
            to_step=floats(weights.project_step),
            decay=floats(-decay.exp()),
            step_bias=floats(weights.step_bias),
            skip=floats(weights.skip),
            state=self.states[1].data_ptr(),
        )

    def _unit_norm(self, width: int, length: float) -> Norm:
        """Return the norm that scales vectors to this length: RMSNorm divides by another mean."""
        weight = self.references.keep(torch.full((width,), length * width**-0.5))
        return Norm(NormKind.RMS, _UNIT_EPS / width, weight.data_ptr())
