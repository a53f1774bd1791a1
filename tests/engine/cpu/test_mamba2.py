"""The recurrence of Mamba-2, token by token in fp64."""

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
from swiftchat.weights.architectures.parts.mixers import Mamba2
from tests.support import native_states
from tests.support.native_ops import each_variant, run_ops
from tests.support.native_states import PARTS, Part

EPS = 1e-5


@dataclass(frozen=True)
class Case:
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
            decay=_random(self.heads),
            step_bias=_random(self.heads, seed=1),
            skip=_random(self.heads, seed=2),
            norm=_random(self.kind.width) if self.has_norm else None,
        )

    def rows(self, parts: Sequence[Part]) -> Tensor:
        x = _random(native_states.num_rows(parts), sum(self.sizes))
        x[::3, -self.heads :] = 60.0  # these steps forget everything
        return x

    def state(self, parts: Sequence[Part]) -> Tensor:
        return native_states.states(parts, self.heads, self.head_dim, self.state_size)

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
        buffers = [(RowSet.TOKENS, x.shape[1]), (RowSet.TOKENS, self.kind.width)]
        found = run_ops(variant, [op], buffers, {0: x}, native_states.inputs(parts), num_threads)
        assert torch.equal(found[0], x)
        return found[1]

    def expected(self, x: Tensor, state: Tensor, parts: Sequence[Part]) -> tuple[Tensor, Tensor]:
        """Return the output and the states after it, in fp64."""
        outputs, after, row = [], state.double(), 0
        for part in parts:
            h = torch.zeros_like(after[0]) if part.is_first else after[part.slot]
            for token in x[row : row + part.num_rows].double():
                h, out = self._token(token, h)
                outputs.append(out)
            row += part.num_rows
            after[part.slot] = h
        return torch.stack(outputs), after

    def _token(self, row: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
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


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


CASES = {
    "odd sizes": Case(),
    "one head": Case(1, 1, 1, 1),
    "usual sizes": Case(2, 64, 1, 128),
    "gates last, scaled": Case(gate_last=True, z_scale=0.7, step_scale=1.3),
    "no norm, least step": Case(has_norm=False, min_step=0.9, state_size=16),
}


@each_variant
@pytest.mark.parametrize("name", CASES)
def test_outputs_and_states(variant: str, name: str) -> None:
    case = CASES[name]
    x, state = case.rows(PARTS), case.state(PARTS)
    expected, after = case.expected(x, state, PARTS)
    found = case.run(variant, x, state, PARTS)
    # Sums of up to 128 products, some after steps of 60; the norm may enlarge small outputs.
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(state.double(), after, rtol=1e-5, atol=1e-4, equal_nan=True)
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
