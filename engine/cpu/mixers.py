"""The operations of mixers with a state, for the native kernels."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from swiftchat.engine.cpu import structures as native
from swiftchat.engine.cpu.activations import CannotRecordError
from swiftchat.engine.cpu.structures import Norm, NormKind
from swiftchat.engine.mixers.states import LayerStates
from swiftchat.engine.mixers.weights import MixerWeights
from swiftchat.weights.architectures.mixers import GatedDelta, ShortConv, StateMixer

_UNIT_EPS = 1e-6  # of the lengths of keys and queries, as in engine/mixers/gated_delta.py


@dataclass(frozen=True)
class NativeMixer:
    """The operations of a layer's mixer, without their buffers.

    `conv` reads the projections and, without a `scan`, writes the mixed rows [n, `width`]; else it
    is in place, and `scan` reads and writes them.
    """

    width: int
    conv: native.ConvOp
    scan: native.GatedDeltaOp | None = None


@dataclass(frozen=True)
class Parameters:
    """The weights of a layer's mixer in memory that `keep` keeps alive, and its states."""

    weights: MixerWeights
    states: LayerStates
    keep: Callable[[Any], Any]

    def mixer(self, kind: StateMixer, activation: native.Activation) -> NativeMixer:
        """Return the operations; raises `CannotRecordError` for a mixer without kernels."""
        match kind:
            case ShortConv():
                conv = self._conv(native.Activation.NONE)
                conv.gated = True
                return NativeMixer(kind.width, conv)
            case GatedDelta():
                return NativeMixer(kind.value_width, self._conv(activation), self._delta(kind))
        raise CannotRecordError("no kernel computes this kind of mixer")

    def _conv(self, activation: native.Activation) -> native.ConvOp:
        """Return the convolution.

        Its state has the sizes of torch's in another order: the channels of each token together.
        """
        weight = self.keep(self.weights.conv.float().t().contiguous())
        return native.ConvOp(
            kernel=len(weight),
            channels=weight.shape[1],
            activation=activation,
            weight=weight.data_ptr(),
            bias=self._floats(self.weights.conv_bias),
            state=self.states[0].data_ptr(),
        )

    def _delta(self, kind: GatedDelta) -> native.GatedDeltaOp:
        return native.GatedDeltaOp(
            num_key_heads=kind.num_key_heads,
            num_value_heads=kind.num_value_heads,
            key_dim=kind.key_dim,
            value_dim=kind.value_dim,
            q_norm=self._unit_norm(kind.key_dim, kind.key_dim**-0.5),
            k_norm=self._unit_norm(kind.key_dim, 1.0),
            norm=Norm(NormKind.RMS, kind.norm_eps, self._floats(self.weights.norm)),
            decay=self._floats(self.weights.decay),
            step_bias=self._floats(self.weights.step_bias),
            state=self.states[1].data_ptr(),
        )

    def _unit_norm(self, width: int, length: float) -> Norm:
        """Return the norm that scales vectors to this length: RMSNorm divides by another mean."""
        weight = self.keep(torch.full((width,), length * width**-0.5))
        return Norm(NormKind.RMS, _UNIT_EPS / width, weight.data_ptr())

    def _floats(self, tensor: Tensor | None) -> int | None:
        """Return the address of a vector in fp32."""
        return None if tensor is None else int(self.keep(tensor.float().contiguous()).data_ptr())
