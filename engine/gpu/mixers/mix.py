"""Token mixers with a state on a GPU: decode steps, and the tokens of prompts in order."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.layers.act_and_mul import KINDS
from swiftchat.cuda.ops.mixers.gated_delta import gated_delta_step_fits
from swiftchat.cuda.ops.mixers.selective import selective_fits
from swiftchat.cuda.ops.mixers.steps import MAX_TAPS, gated_norm_fits, mamba2_step_fits
from swiftchat.engine.comm.communicator import Communicator
from swiftchat.engine.gpu.inputs.device_batch import DeviceBatch
from swiftchat.engine.gpu.mixers.gated_delta import GatedDeltaKernels
from swiftchat.engine.gpu.mixers.kind import MixerKind
from swiftchat.engine.gpu.mixers.mamba import MambaKernels
from swiftchat.engine.gpu.mixers.mamba2 import Mamba2Kernels
from swiftchat.engine.gpu.mixers.short_conv import ShortConvKernels
from swiftchat.engine.model.mixer_weights import MixerInputs, MixerWeights
from swiftchat.engine.reference.activations import ACTIVATIONS
from swiftchat.engine.reference.mixers.mix import scan_groups
from swiftchat.weights.architectures.parts.mamba import Mamba
from swiftchat.weights.architectures.parts.mixers import (
    GatedDelta,
    KimiDelta,
    Mamba2,
    ShortConv,
    StateMixer,
)
from swiftchat.weights.architectures.parts.model import ModelConfig


def mixer_kernels_cover(config: ModelConfig) -> bool:
    """Return whether the kernels compute decode steps of a model's mixers, if it has any."""
    mixer = config.mixer
    return mixer is None or (config.mixer_activation in KINDS and kernels_of(mixer) is not None)


def kernels_of(mixer: StateMixer) -> Callable[[Gpu, Any, str], MixerKind] | None:
    """Return the class of the kernels that compute a mixer; None: there are none."""
    match mixer:
        case ShortConv() if mixer.kernel <= MAX_TAPS:
            return ShortConvKernels
        case Mamba() if mixer.kernel <= MAX_TAPS and selective_fits(mixer.state_size):
            return MambaKernels
        case GatedDelta(beta_scale=1.0) | KimiDelta(is_plain=False, bound=None):
            _, key_dim, value_dim = mixer.states[1]
            fits = gated_delta_step_fits(key_dim, value_dim, mixer.kernel)
            return GatedDeltaKernels if fits else None
        # A bias is not multiplied by the input's scale, but the kernel scales the sum.
        case Mamba2() if not mixer.in_bias or mixer.scales[0] == 1.0:
            normed = mixer.norm_eps is None or gated_norm_fits(mixer.width // mixer.num_groups)
            fits = normed and mamba2_step_fits(mixer.state_size, mixer.kernel)
            return Mamba2Kernels if fits else None
    return None


class MixerKernels:
    """The mixers of a model's layers on one GPU, between the projections of input and output."""

    def __init__(self, gpu: Gpu, config: ModelConfig) -> None:
        self._gpu, self._config = gpu, config
        self._kind: MixerKind | None = None
        kernels = None if config.mixer is None else kernels_of(config.mixer)
        if kernels is not None:
            self._kind = kernels(gpu, config.mixer, config.mixer_activation)

    @property
    def scans(self) -> bool:
        """Whether the kernels compute the tokens of prompts."""
        return self._kind is not None and self._kind.scans

    def mix(
        self,
        batch: DeviceBatch,
        layer: int,
        projected: Tensor,
        weights: MixerWeights,
        ranks: Communicator,
    ) -> Tensor:
        """Return the mixed tokens T [n, width] of projections T [n, …] of a batch; advance states.

        `ranks` divide the heads or channels of the mixer.
        """
        kind, mixer = self._kind, self._config.layers[layer].mixer
        assert kind is not None and mixer is not None
        activate = ACTIVATIONS[self._config.mixer_activation]
        inputs = MixerInputs(weights, batch.states[layer], activate, ranks)
        out = projected.new_empty(len(projected), weights.project_out.shape[1])
        if batch.scans is not None:
            # It also writes something to the rows of steps, which come next.
            kind.scan(projected, out, inputs, batch.scans)
        elif batch.scanned:
            scan_groups(projected, out, mixer, batch.scanned, inputs)
        if batch.steps is not None:
            n = len(batch.steps.positions)
            kind.step(projected[:n], out[:n], inputs, batch.steps)
        return out
