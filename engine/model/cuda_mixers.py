"""Token mixers with a state on a GPU: decode steps, and the tokens of prompts in order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.act_and_mul import KINDS
from swiftchat.cuda.ops.mixer_scans import (
    ScanRows,
    causal_conv,
    gated_delta_scan,
    gated_delta_scan_fits,
    mamba2_scan,
    mamba2_scan_fits,
)
from swiftchat.cuda.ops.mixers import (
    MAX_TAPS,
    StepSlots,
    gated_delta_step,
    gated_delta_step_fits,
    gated_norm,
    gated_norm_fits,
    mamba2_step,
    mamba2_step_fits,
    short_conv_step,
)
from swiftchat.engine.mixers.mixer import scan_groups
from swiftchat.engine.mixers.states import LayerStates, StateRows, plan_states
from swiftchat.engine.mixers.weights import MixerWeights
from swiftchat.engine.model.activations import ACTIVATIONS
from swiftchat.engine.schedule.batch import Span
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.parts.mixers import GatedDelta, Mamba2, ShortConv


@dataclass(frozen=True)
class StatePlan:
    """The states of a batch: `steps` of its first rows, and `scans` of the other rows.

    If the kernels cannot scan the model's states, torch's operators compute `groups` instead.
    """

    layers: Mapping[int, LayerStates]
    steps: StepSlots | None = None
    scans: ScanRows | None = None
    groups: Sequence[StateRows] = ()


def mixer_kernels_cover(config: ModelConfig) -> bool:
    """Return whether the kernels compute decode steps of a model's mixers, if it has any."""
    mixer = config.mixer
    if (config.mixer_activation or config.activation) not in KINDS:
        return mixer is None
    match mixer:
        case None:
            return True
        case ShortConv():
            return mixer.kernel <= MAX_TAPS
        case GatedDelta():
            fits = gated_delta_step_fits(mixer.key_dim, mixer.value_dim, mixer.kernel)
            return fits and mixer.beta_scale == 1.0
        case Mamba2():
            # A bias is not multiplied by the input's scale, but the kernel scales the sum.
            has_scaled_bias = mixer.in_bias and mixer.scales[0] != 1.0
            return (
                mamba2_step_fits(mixer.state_size, mixer.kernel)
                and not has_scaled_bias
                and (mixer.norm_eps is None or gated_norm_fits(mixer.width // mixer.num_groups))
            )
    return False


class MixerKernels:
    """The mixers of a model's layers on one GPU, between the projections of input and output."""

    def __init__(self, gpu: Gpu, config: ModelConfig) -> None:
        self._gpu, self._config = gpu, config
        self._activation = config.mixer_activation or config.activation
        match config.mixer:
            case GatedDelta() as mixer:
                self._scans = gated_delta_scan_fits(mixer.key_dim, mixer.value_dim)
            case Mamba2() as mixer:
                self._scans = mamba2_scan_fits(mixer.width, mixer.state_size)
            case _:
                self._scans = True

    def plan(
        self,
        spans: Sequence[Span],
        num_steps: int,
        positions: Tensor,
        layers: Mapping[int, LayerStates],
    ) -> StatePlan:
        """Plan the states of a batch whose first `num_steps` rows have one token each.

        `positions` int32 on the device are those of all tokens.
        """
        device = self._gpu.device

        def slots(rows: Sequence[Span]) -> Tensor:
            pairs = [row.state_slot for row in rows], [row.next_state_slot for row in rows]
            return torch.tensor(pairs, dtype=torch.int32).to(device)

        steps: StepSlots | None = None
        rows, rest = spans[:num_steps], spans[num_steps:]
        if rows:
            steps = StepSlots(slots(rows), positions[:num_steps])
        if not rest:
            return StatePlan(layers, steps)
        if not self._scans:
            return StatePlan(layers, steps, groups=plan_states(rest, device))
        starts = list(accumulate((row.num_tokens for row in rest), initial=rest[0].start))
        on_device = torch.tensor(starts, dtype=torch.int32).to(device)
        longest = max(row.num_tokens for row in rest)
        return StatePlan(layers, steps, ScanRows(on_device, slots(rest), positions, longest))

    def mix(self, plan: StatePlan, layer: int, projected: Tensor, weights: MixerWeights) -> Tensor:
        """Return the mixed tokens T [n, width] of projections T [n, …]; advance the states."""
        mixer, states = self._config.mixer, plan.layers[layer]
        assert mixer is not None
        out = projected.new_empty(len(projected), weights.project_out.shape[1])
        if plan.scans is not None:
            # It also writes something to the rows of steps, which come next.
            self._scan(projected, out, weights, plan.scans, states)
        elif plan.groups:
            activation = ACTIVATIONS[self._activation]
            scan_groups(projected, out, weights, mixer, plan.groups, states, activation)
        if plan.steps is not None:
            num_steps = len(plan.steps.positions)
            self._step(projected[:num_steps], out[:num_steps], weights, plan.steps, states)
        return out

    def _step(
        self,
        projected: Tensor,
        out: Tensor,
        weights: MixerWeights,
        rows: StepSlots,
        states: LayerStates,
    ) -> None:
        match self._config.mixer:
            case ShortConv():
                short_conv_step(
                    self._gpu,
                    projected,
                    out,
                    conv=weights.conv,
                    conv_bias=weights.conv_bias,
                    conv_states=states[0],
                    rows=rows,
                )
            case GatedDelta() as mixer:
                decay, step_bias, norm = weights.decay, weights.step_bias, weights.norm
                assert decay is not None and step_bias is not None and norm is not None
                gated_delta_step(
                    self._gpu,
                    projected,
                    out,
                    conv=weights.conv,
                    decay=decay,
                    step_bias=step_bias,
                    norm=norm,
                    conv_states=states[0],
                    states=states[1],
                    rows=rows,
                    num_key_heads=mixer.num_key_heads,
                    activation=self._activation,
                    norm_eps=mixer.norm_eps,
                )
            case Mamba2() as mixer:
                self._mamba2_step(projected, out, mixer, weights, rows, states)

    def _mamba2_step(
        self,
        projected: Tensor,
        out: Tensor,
        mixer: Mamba2,
        weights: MixerWeights,
        rows: StepSlots,
        states: LayerStates,
    ) -> None:
        decay, step_bias, skip = weights.decay, weights.step_bias, weights.skip
        assert decay is not None and step_bias is not None and skip is not None
        is_normed = mixer.norm_eps is not None and weights.norm is not None
        inner = torch.empty(out.shape, device=out.device) if is_normed else out
        before, z, x, b, c, step = mixer.scales
        mamba2_step(
            self._gpu,
            projected,
            inner,
            conv=weights.conv,
            conv_bias=weights.conv_bias,
            decay=decay,
            step_bias=step_bias,
            skip=skip,
            conv_states=states[0],
            states=states[1],
            rows=rows,
            num_groups=mixer.num_groups,
            activation=self._activation,
            gated=not (is_normed and mixer.gate_last),
            min_step=mixer.min_step,
            scales=(before * z, before * x, before * b, before * c, before * step),
        )
        self._normalize(projected, inner, out, mixer, weights)

    def _scan(
        self,
        projected: Tensor,
        out: Tensor,
        weights: MixerWeights,
        rows: ScanRows,
        states: LayerStates,
    ) -> None:
        match self._config.mixer:
            case ShortConv():
                causal_conv(
                    self._gpu,
                    projected,
                    out,
                    conv=weights.conv,
                    conv_bias=weights.conv_bias,
                    conv_states=states[0],
                    rows=rows,
                )
            case GatedDelta() as mixer:
                self._gated_delta_scan(projected, out, mixer, weights, rows, states)
            case Mamba2() as mixer:
                self._mamba2_scan(projected, out, mixer, weights, rows, states)

    def _gated_delta_scan(
        self,
        projected: Tensor,
        out: Tensor,
        mixer: GatedDelta,
        weights: MixerWeights,
        rows: ScanRows,
        states: LayerStates,
    ) -> None:
        decay, step_bias, norm = weights.decay, weights.step_bias, weights.norm
        assert decay is not None and step_bias is not None and norm is not None
        mixed = torch.empty(len(projected), len(weights.conv), device=projected.device)
        causal_conv(
            self._gpu,
            projected,
            mixed,
            conv=weights.conv,
            conv_bias=None,
            conv_states=states[0],
            rows=rows,
            activation=self._activation,
        )
        inner = torch.empty(out.shape, device=out.device)
        gated_delta_scan(
            self._gpu,
            mixed,
            projected,
            inner,
            decay=decay,
            step_bias=step_bias,
            states=states[1],
            rows=rows,
            num_key_heads=mixer.num_key_heads,
        )
        gated_norm(
            self._gpu,
            inner,
            norm,
            out,
            num_groups=mixer.num_value_heads,
            eps=mixer.norm_eps,
            gates=projected[:, mixed.shape[1] :],
        )

    def _mamba2_scan(
        self,
        projected: Tensor,
        out: Tensor,
        mixer: Mamba2,
        weights: MixerWeights,
        rows: ScanRows,
        states: LayerStates,
    ) -> None:
        decay, step_bias, skip = weights.decay, weights.step_bias, weights.skip
        assert decay is not None and step_bias is not None and skip is not None
        before, z, x, b, c, step = mixer.scales
        mixed = torch.empty(len(projected), len(weights.conv), device=projected.device)
        causal_conv(
            self._gpu,
            projected,
            mixed,
            conv=weights.conv,
            conv_bias=weights.conv_bias,
            conv_states=states[0],
            rows=rows,
            first_column=mixer.width,
            activation=self._activation,
            scales=(before * x, before * b, before * c),
            scale_ends=(mixer.width, mixer.width + mixer.num_groups * mixer.state_size),
        )
        is_normed = mixer.norm_eps is not None and weights.norm is not None
        inner = torch.empty(out.shape, device=out.device) if is_normed else out
        mamba2_scan(
            self._gpu,
            mixed,
            projected,
            inner,
            decay=decay,
            step_bias=step_bias,
            skip=skip,
            states=states[1],
            rows=rows,
            num_groups=mixer.num_groups,
            gated=not (is_normed and mixer.gate_last),
            min_step=mixer.min_step,
            z_scale=before * z,
            step_scale=before * step,
        )
        self._normalize(projected, inner, out, mixer, weights)

    def _normalize(
        self, projected: Tensor, inner: Tensor, out: Tensor, mixer: Mamba2, weights: MixerWeights
    ) -> None:
        """Write the norm of Mamba-2's outputs fp32 to `out`, if they are normalized."""
        if mixer.norm_eps is None or weights.norm is None:
            return
        gated_norm(
            self._gpu,
            inner,
            weights.norm,
            out,
            num_groups=mixer.num_groups,
            eps=mixer.norm_eps,
            gates=projected if mixer.gate_last else None,
            gate_scale=mixer.scales[0] * mixer.scales[1],
        )
