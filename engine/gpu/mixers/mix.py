"""Token mixers with a state on a GPU: decode steps, and the tokens of prompts in order."""

from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.layers.act_and_mul import KINDS
from swiftchat.engine.comm.communicator import Communicator
from swiftchat.engine.gpu.inputs.device_batch import DeviceBatch
from swiftchat.engine.gpu.mixers.gated_delta import GatedDeltaKernels
from swiftchat.engine.gpu.mixers.kimi_delta import KimiDeltaKernels
from swiftchat.engine.gpu.mixers.kind import MixerKind
from swiftchat.engine.gpu.mixers.mamba import MambaKernels
from swiftchat.engine.gpu.mixers.mamba2 import Mamba2Kernels
from swiftchat.engine.gpu.mixers.short_conv import ShortConvKernels
from swiftchat.engine.model.mixer_weights import MixerWeights
from swiftchat.engine.reference.activations import ACTIVATIONS
from swiftchat.engine.reference.mixers.mix import scan_groups
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.parts.mamba import Mamba
from swiftchat.weights.architectures.parts.mixers import (
    GatedDelta,
    KimiDelta,
    Mamba2,
    ShortConv,
    StateMixer,
)


def mixer_kernels_cover(config: ModelConfig) -> bool:
    """Return whether the kernels compute decode steps of a model's mixers, if it has any."""
    mixer = config.mixer
    if any(layer.mixer_activation not in KINDS for layer in config.layers):
        return mixer is None
    match mixer:
        case None:
            return True
        case ShortConv():
            return ShortConvKernels.cover(mixer)
        case GatedDelta():
            return GatedDeltaKernels.cover(mixer)
        case KimiDelta():
            return KimiDeltaKernels.cover(mixer)
        case Mamba2():
            return Mamba2Kernels.cover(mixer)
        case Mamba():
            return MambaKernels.cover(mixer)
    return False


def _kind(gpu: Gpu, mixer: StateMixer, activation: str) -> MixerKind:
    match mixer:
        case ShortConv():
            return ShortConvKernels(gpu)
        case GatedDelta():
            return GatedDeltaKernels(gpu, mixer, activation)
        case KimiDelta():
            return KimiDeltaKernels(gpu, mixer, activation)
        case Mamba2():
            return Mamba2Kernels(gpu, mixer, activation)
        case Mamba():
            return MambaKernels(gpu, mixer, activation)
    raise AssertionError("no kernel computes it")  # see `mixer_kernels_cover`


class MixerKernels:
    """The mixers of a model's layers on one GPU, between the projections of input and output."""

    def __init__(self, gpu: Gpu, config: ModelConfig) -> None:
        self._gpu, self._config = gpu, config
        self._activation = config.layers[0].mixer_activation
        self._kind: MixerKind | None = None
        if config.mixer is not None:
            self._kind = _kind(gpu, config.mixer, self._activation)

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
        states = batch.states[layer]
        assert kind is not None and mixer is not None
        out = projected.new_empty(len(projected), weights.project_out.shape[1])
        if batch.scans is not None:
            # It also writes something to the rows of steps, which come next.
            kind.scan(projected, out, weights, states, batch.scans, ranks)
        elif batch.scanned:
            activation = ACTIVATIONS[self._activation]
            scan_groups(projected, out, weights, mixer, batch.scanned, states, activation, ranks)
        if batch.steps is not None:
            n = len(batch.steps.positions)
            kind.step(projected[:n], out[:n], weights, states, batch.steps, ranks)
        return out
