"""The recurrence of gated DeltaNet, token by token in fp64."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.linear.plain import PlainWeight
from swiftchat.engine.model.mixer_weights import MixerWeights
from swiftchat.weights.architectures.parts.mixers import GatedDelta
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
    key_heads: int = 2
    value_heads: int = 6
    key_dim: int = 19
    value_dim: int = 37
    beta_scale: float = 1.0

    @property
    def kind(self) -> GatedDelta:
        sizes = (self.key_heads, self.value_heads, self.key_dim, self.value_dim)
        delta = GatedDelta(*sizes, kernel=1, norm_eps=EPS, by_key_head=False)
        return replace(delta, beta_scale=self.beta_scale)

    @property
    def sizes(self) -> list[int]:
        keys, values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        return [keys, keys, values, values, self.value_heads, self.value_heads]

    @property
    def weights(self) -> MixerWeights:
        unused = PlainWeight(torch.empty(0, 0))
        return MixerWeights(
            *(unused, None, torch.empty(1, 1), None, unused, None),
            decay=random(self.value_heads),
            step_bias=random(self.value_heads, seed=1),
            norm=random(self.value_dim),
        )

    @property
    def width(self) -> int:
        return self.kind.value_width

    @property
    def state_shape(self) -> tuple[int, ...]:
        return (self.value_heads, self.key_dim, self.value_dim)

    def token(self, x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        weights, heads = self.weights, self.value_heads
        assert weights.decay is not None and weights.step_bias is not None
        assert weights.norm is not None
        q, k, v, z, beta, step = x.split(self.sizes)
        q, k = (
            (t / (t.square().sum(1, keepdim=True) + 1e-6).sqrt()).repeat_interleave(
                heads // self.key_heads, 0
            )
            for t in (q.view(-1, self.key_dim), k.view(-1, self.key_dim))
        )
        v, z = v.view(heads, -1), z.view(heads, -1)
        g = -weights.decay.double().exp() * F.softplus(step + weights.step_bias)
        s = s * g.exp().view(-1, 1, 1)
        wrong = v - torch.einsum("hkv,hk->hv", s, k)
        share = self.beta_scale * beta.sigmoid().unsqueeze(1)
        s = s + torch.einsum("hk,hv->hkv", k, share * wrong)
        out = torch.einsum("hkv,hk->hv", s, q * self.key_dim**-0.5)
        out = out / (out.square().mean(1, keepdim=True) + EPS).sqrt() * weights.norm
        return s, (out * F.silu(z)).flatten()


CASES = {
    "odd sizes": Case(),
    "one head": Case(1, 1, 1, 1),
    "usual sizes": Case(1, 2, 128, 128),
    "as many key heads": Case(3, 3, 8, 65),
    "twice the correction": Case(2, 4, 24, 48, beta_scale=2.0),
}


@each_variant
@each_case("name", CASES)
def test_outputs_and_states(variant: str, name: str) -> None:
    assert_close_to_reference(CASES[name], variant, state_atol=1e-5)


@each_variant
def test_neither_chunks_nor_threads_change_a_bit(variant: str) -> None:
    assert_same_in_chunks(Case(), variant)


@each_variant
def test_states_after_each_token_are_kept(variant: str) -> None:
    assert_states_after_each_token(Case(), variant)
