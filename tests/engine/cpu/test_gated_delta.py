"""The recurrence of gated DeltaNet, token by token in fp64."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.cpu.mixers import Parameters
from swiftchat.engine.cpu.structures import Activation, OpHeader, RowSet
from swiftchat.engine.linear.plain import PlainWeight
from swiftchat.engine.mixers.weights import MixerWeights
from swiftchat.weights.architectures.parts.mixers import GatedDelta
from tests.support import native_states
from tests.support.native_ops import each_variant, run_ops
from tests.support.native_states import PARTS, Part

EPS = 1e-5


@dataclass(frozen=True)
class Case:
    key_heads: int = 2
    value_heads: int = 6
    key_dim: int = 19
    value_dim: int = 37

    @property
    def kind(self) -> GatedDelta:
        sizes = (self.key_heads, self.value_heads, self.key_dim, self.value_dim)
        return GatedDelta(*sizes, kernel=1, norm_eps=EPS, by_key_head=False)

    @property
    def sizes(self) -> list[int]:
        keys, values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        return [keys, keys, values, values, self.value_heads, self.value_heads]

    @property
    def weights(self) -> MixerWeights:
        unused = PlainWeight(torch.empty(0, 0))
        return MixerWeights(
            *(unused, None, torch.empty(1, 1), None, unused, None),
            decay=_random(self.value_heads),
            step_bias=_random(self.value_heads, seed=1),
            norm=_random(self.value_dim),
        )

    def rows(self, parts: Sequence[Part]) -> Tensor:
        x = _random(native_states.num_rows(parts), sum(self.sizes))
        x[::3, -self.value_heads :] = 60.0  # these steps forget everything
        return x

    def state(self, parts: Sequence[Part]) -> Tensor:
        return native_states.states(parts, self.value_heads, self.key_dim, self.value_dim)

    def run(
        self, variant: str, x: Tensor, state: Tensor, parts: Sequence[Part], num_threads: int = 2
    ) -> Tensor:
        """Return the output, and advance the state."""
        kept: list[Tensor] = []
        parameters = Parameters(
            self.weights, (torch.empty(0), state), lambda each: kept.append(each) or each
        )
        op = parameters.mixer(self.kind, Activation.SILU).scan
        assert op is not None
        op.header, op.x, op.out = OpHeader(row_set=RowSet.TOKENS), 0, 1
        buffers = [(RowSet.TOKENS, x.shape[1]), (RowSet.TOKENS, self.kind.value_width)]
        found = run_ops(variant, [op], buffers, {0: x}, native_states.inputs(parts), num_threads)
        assert torch.equal(found[0], x)
        return found[1]

    def expected(self, x: Tensor, state: Tensor, parts: Sequence[Part]) -> tuple[Tensor, Tensor]:
        """Return the output and the states after it, in fp64."""
        outputs, after, row = [], state.double(), 0
        for part in parts:
            s = torch.zeros_like(after[0]) if part.is_first else after[part.slot]
            for token in x[row : row + part.num_rows].double():
                s, out = self._token(token, s)
                outputs.append(out)
            row += part.num_rows
            after[part.slot] = s
        return torch.stack(outputs), after

    def _token(self, x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
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
        s = s + torch.einsum("hk,hv->hkv", k, beta.sigmoid().unsqueeze(1) * wrong)
        out = torch.einsum("hkv,hk->hv", s, q * self.key_dim**-0.5)
        out = out / (out.square().mean(1, keepdim=True) + EPS).sqrt() * weights.norm
        return s, (out * F.silu(z)).flatten()


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


CASES = {
    "odd sizes": Case(),
    "one head": Case(1, 1, 1, 1),
    "usual sizes": Case(1, 2, 128, 128),
    "as many key heads": Case(3, 3, 8, 65),
}


@each_variant
@pytest.mark.parametrize("name", CASES)
def test_outputs_and_states(variant: str, name: str) -> None:
    case = CASES[name]
    x, state = case.rows(PARTS), case.state(PARTS)
    expected, after = case.expected(x, state, PARTS)
    found = case.run(variant, x, state, PARTS)
    # Sums of up to 128 products, corrected for each token; the norm may enlarge small outputs.
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(state.double(), after, rtol=1e-5, atol=1e-5, equal_nan=True)
    native_states.assert_only_these_written(state, PARTS)


@each_variant
def test_neither_chunks_nor_threads_change_a_bit(variant: str) -> None:
    case, whole = Case(), (Part(11, 11, 1),)
    x, state = case.rows(whole), case.state(whole)
    expected = case.run(variant, x, state, whole)
    for num_threads in (1, 3):
        divided, outputs = torch.full_like(state, torch.nan), []
        for part, rows in native_states.divided(x, (2, 1, 1, 7)):
            outputs.append(case.run(variant, rows, divided, (part,), num_threads))
        assert torch.equal(torch.cat(outputs), expected)
        assert torch.equal(divided[1], state[1])
