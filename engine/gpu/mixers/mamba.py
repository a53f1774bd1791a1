"""Mamba in kernels; its small projections are fp32 GEMMs."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.mixers.scans import ScanRows, causal_conv
from swiftchat.cuda.ops.mixers.selective import (
    SelectiveInputs,
    SelectiveWeights,
    selective_scan,
    selective_step,
)
from swiftchat.cuda.ops.mixers.steps import StepSlots, causal_conv_step
from swiftchat.engine.comm.communicator import Communicator
from swiftchat.engine.gpu.mixers.kind import present
from swiftchat.engine.model.mixer_weights import MixerWeights
from swiftchat.engine.model.state_cache import LayerStates
from swiftchat.engine.reference.mixers.mamba import split_projections
from swiftchat.weights.architectures.parts.mamba import Mamba


class MambaKernels:
    """See `MixerKind`."""

    def __init__(self, gpu: Gpu, mixer: Mamba, activation: str) -> None:
        self._gpu, self._mixer, self._activation = gpu, mixer, activation
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
        self._mix(causal_conv_step, selective_step, projected, out, weights, states, rows, ranks)

    def scan(
        self,
        projected: Tensor,
        out: Tensor,
        weights: MixerWeights,
        states: LayerStates,
        rows: ScanRows,
        ranks: Communicator,
    ) -> None:
        self._mix(causal_conv, selective_scan, projected, out, weights, states, rows, ranks)

    def _mix(
        self,
        convolve: Callable[..., None],
        recur: Callable[..., None],
        projected: Tensor,
        out: Tensor,
        weights: MixerWeights,
        states: LayerStates,
        rows: StepSlots | ScanRows,
        ranks: Communicator,
    ) -> None:
        """Compute one token of each row, or all its tokens, with the kernels for that."""
        mixed = torch.empty(out.shape, device=out.device)
        convolve(
            self._gpu,
            projected,
            mixed,
            conv=weights.conv,
            conv_bias=weights.conv_bias,
            conv_states=states[0],
            rows=rows,
            activation=self._activation,
        )
        inputs, constants = self._inputs(mixed, projected, weights, ranks)
        recur(self._gpu, inputs, constants, out, states=states[1], rows=rows)

    def _inputs(
        self, x: Tensor, projected: Tensor, weights: MixerWeights, ranks: Communicator
    ) -> tuple[SelectiveInputs, SelectiveWeights]:
        """Return what the recurrence reads, given x fp32 [n, width] after the convolution."""
        step, b, c = split_projections(x, self._mixer, weights, ranks)
        steps = F.linear(step, present(weights.project_step))
        gates = projected[:, self._mixer.width :]
        constants = SelectiveWeights(
            present(weights.decay), present(weights.step_bias), present(weights.skip)
        )
        return SelectiveInputs(x, steps, b, c, gates), constants
