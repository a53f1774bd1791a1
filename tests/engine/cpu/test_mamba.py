"""The recurrence of Mamba, token by token in fp64."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.linear.plain import PlainWeight
from swiftchat.engine.model.mixer_weights import MixerWeights
from swiftchat.weights.architectures.parts.mamba import Mamba
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
    channels: int = 37
    state_size: int = 21
    step_rank: int = 11
    has_norm: bool = True
    norm_weights: bool = True

    @property
    def kind(self) -> Mamba:
        return Mamba(
            *(self.channels, self.state_size, self.step_rank),
            kernel=1,
            bias=False,
            conv_bias=False,
            norm_eps=EPS if self.has_norm else None,
            norm_weights=self.norm_weights,
        )

    @property
    def sizes(self) -> list[int]:
        return [self.channels, self.channels]

    @property
    def parts(self) -> list[int]:
        return [self.step_rank, self.state_size, self.state_size]

    @property
    def weights(self) -> MixerWeights:
        unused, width = PlainWeight(torch.empty(0, 0)), self.channels
        norms = [
            random(size, seed=i) if self.norm_weights else None for i, size in enumerate(self.parts)
        ]
        return MixerWeights(
            *(unused, None, torch.empty(width, 1), None, unused, None),
            decay=random(width, self.state_size),
            step_bias=random(width, seed=1),
            skip=random(width, seed=2),
            project_x=random(sum(self.parts), width, seed=3) * width**-0.5,
            project_step=random(width, self.step_rank, seed=4) * self.step_rank**-0.5,
            step_norm=norms[0],
            b_norm=norms[1],
            c_norm=norms[2],
        )

    @property
    def width(self) -> int:
        return self.channels

    @property
    def state_shape(self) -> tuple[int, ...]:
        return (self.channels, self.state_size)

    def token(self, row: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.weights
        assert weights.decay is not None and weights.step_bias is not None
        assert weights.skip is not None
        assert weights.project_x is not None and weights.project_step is not None
        x, z = row.split(self.sizes)
        parts = (weights.project_x.double() @ x).split(self.parts)
        norms = (weights.step_norm, weights.b_norm, weights.c_norm)
        step, b, c = (self._normed(p, n) for p, n in zip(parts, norms, strict=True))
        step = F.softplus(weights.project_step.double() @ step + weights.step_bias).unsqueeze(1)
        decay = (-weights.decay.double().exp() * step).exp()
        h = h * decay + step * x.unsqueeze(1) * b
        return h, (h @ c + weights.skip * x) * F.silu(z)

    def _normed(self, part: Tensor, weight: Tensor | None) -> Tensor:
        if not self.has_norm:
            return part
        part = part / (part.square().mean() + EPS).sqrt()
        return part if weight is None else part * weight


CASES = {
    "odd sizes": Case(),
    "one of each": Case(1, 1, 1),
    "no norms, usual sizes": Case(64, 16, 8, has_norm=False, norm_weights=False),
    "norms without weights": Case(24, 6, 3, norm_weights=False),
    "wide steps": Case(19, 33, 40),
}


@each_variant
@each_case("name", CASES)
def test_outputs_and_states(variant: str, name: str) -> None:
    assert_close_to_reference(CASES[name], variant, state_atol=1e-4)


@each_variant
def test_chunks_and_threads_change_nothing(variant: str) -> None:
    assert_same_in_chunks(CASES["odd sizes"], variant)


@each_variant
def test_states_after_each_token_are_kept(variant: str) -> None:
    assert_states_after_each_token(CASES["odd sizes"], variant)
