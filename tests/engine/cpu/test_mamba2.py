"""The recurrence of Mamba-2, token by token in fp64."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.linear.plain import PlainWeight
from swiftchat.engine.model.mixer_weights import MixerWeights
from swiftchat.weights.architectures.parts.mixers import Mamba2
from tests.support.cases import each_case
from tests.support.native.ops import each_variant
from tests.support.native.scans import (
    ScanCase,
    assert_close_to_reference,
    assert_same_in_chunks,
    assert_states_after_each_token,
    random,
)

EPS = 1e-5


@dataclass(frozen=True)
class Case(ScanCase):
    heads: int = 6
    head_dim: int = 19
    groups: int = 2
    state_size: int = 21
    has_norm: bool = True
    gate_last: bool = False
    min_step: float = 0.0
    z_scale: float = 1.0
    step_scale: float = 1.0

    @property
    def kind(self) -> Mamba2:
        return Mamba2(
            *(self.heads, self.head_dim, self.groups, self.state_size),
            kernel=1,
            norm_eps=EPS if self.has_norm else None,
            in_bias=False,
            out_bias=False,
            conv_bias=False,
            min_step=self.min_step,
            gate_last=self.gate_last,
            scales=(1.0, self.z_scale, 1.0, 1.0, 1.0, self.step_scale),
        )

    @property
    def sizes(self) -> list[int]:
        groups, width = self.groups * self.state_size, self.kind.width
        return [width, width, groups, groups, self.heads]

    @property
    def weights(self) -> MixerWeights:
        unused, channels = PlainWeight(torch.empty(0, 0)), sum(self.sizes[1:4])
        return MixerWeights(
            *(unused, None, torch.empty(channels, 1), None, unused, None),
            decay=random(self.heads),
            step_bias=random(self.heads, seed=1),
            skip=random(self.heads, seed=2),
            norm=random(self.kind.width) if self.has_norm else None,
        )

    @property
    def width(self) -> int:
        return self.kind.width

    @property
    def state_shape(self) -> tuple[int, ...]:
        return (self.heads, self.head_dim, self.state_size)

    def token(self, row: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.weights
        assert weights.decay is not None and weights.step_bias is not None
        assert weights.skip is not None
        z, x, b, c, step = row.split(self.sizes)
        repeats = self.heads // self.groups
        b, c = (t.view(self.groups, -1).repeat_interleave(repeats, 0) for t in (b, c))
        x = x.view(self.heads, -1)
        step = F.softplus(self.step_scale * step + weights.step_bias).clamp(min=self.min_step)
        decay = (-weights.decay.double().exp() * step).exp()
        h = h * decay.view(-1, 1, 1) + torch.einsum("h,hd,hs->hds", step, x, b)
        out = torch.einsum("hds,hs->hd", h, c) + weights.skip.unsqueeze(1) * x
        gate = F.silu(self.z_scale * z)
        out = out.flatten() if self.gate_last else out.flatten() * gate
        if weights.norm is not None:
            groups = out.view(self.groups, -1)
            out = (groups / (groups.square().mean(1, keepdim=True) + EPS).sqrt()).flatten()
            out = out * weights.norm
        return h, out * gate if self.gate_last else out


CASES = {
    "odd sizes": Case(),
    "one head": Case(1, 1, 1, 1),
    "usual sizes": Case(2, 64, 1, 128),
    "gates last, scaled": Case(gate_last=True, z_scale=0.7, step_scale=1.3),
    "no norm, least step": Case(has_norm=False, min_step=0.9, state_size=16),
}


@each_variant
@each_case("name", CASES)
def test_outputs_and_states(variant: str, name: str) -> None:
    assert_close_to_reference(CASES[name], variant, state_atol=1e-4)


@each_variant
def test_neither_chunks_nor_threads_change_a_bit(variant: str) -> None:
    assert_same_in_chunks(Case(), variant)


@each_variant
def test_states_after_each_token_are_kept(variant: str) -> None:
    assert_states_after_each_token(Case(), variant)
