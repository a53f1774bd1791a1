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
from swiftchat.engine.gpu.mixers.kind import present
from swiftchat.engine.model.mixer_weights import MixerInputs
from swiftchat.engine.reference.mixers.mamba import split_projections
from swiftchat.weights.architectures.parts.mamba import Mamba


class MambaKernels:
    """See `MixerKind`."""

    def __init__(self, gpu: Gpu, mixer: Mamba, activation: str) -> None:
        self._gpu, self._mixer, self._activation = gpu, mixer, activation
        self.scans = True

    def step(self, projected: Tensor, out: Tensor, inputs: MixerInputs, rows: StepSlots) -> None:
        self._mix(causal_conv_step, selective_step, projected, out, inputs, rows)

    def scan(self, projected: Tensor, out: Tensor, inputs: MixerInputs, rows: ScanRows) -> None:
        self._mix(causal_conv, selective_scan, projected, out, inputs, rows)

    def _mix(
        self,
        convolve: Callable[..., None],
        recur: Callable[..., None],
        projected: Tensor,
        out: Tensor,
        inputs: MixerInputs,
        rows: StepSlots | ScanRows,
    ) -> None:
        """Compute one token of each row, or all its tokens, with the kernels for that."""
        weights, mixed = inputs.weights, torch.empty(out.shape, device=out.device)
        convolve(
            self._gpu,
            projected,
            mixed,
            conv=weights.conv,
            conv_bias=weights.conv_bias,
            conv_states=inputs.states[0],
            rows=rows,
            activation=self._activation,
        )
        step, b, c = split_projections(mixed, self._mixer, weights, inputs.ranks)
        steps = F.linear(step, present(weights.project_step))
        gates = projected[:, self._mixer.width :]
        constants = SelectiveWeights(
            present(weights.decay), present(weights.step_bias), present(weights.skip)
        )
        tokens = SelectiveInputs(mixed, steps, b, c, gates)
        recur(self._gpu, tokens, constants, out, states=inputs.states[1], rows=rows)
