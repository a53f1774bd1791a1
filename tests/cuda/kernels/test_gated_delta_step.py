"""gated_delta_step against the recurrence in fp64."""

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.mixers.gated_delta import gated_delta_step
from tests.support.kernels.case import DTYPES, ROUNDING, Inputs, assert_close, poisoned
from tests.support.kernels.mixer_steps import FP32_TOLERANCE, Steps, convolve, make_steps

pytestmark = pytest.mark.gpu
EPS = 1e-6

# key heads, value heads, key_dim, value_dim, taps; the first are Qwen3-Next's.
SHAPES = [(16, 32, 128, 128, 4), (2, 6, 24, 40, 3), (3, 3, 5, 4, 2), (1, 2, 12, 100, 4)]


class Case:
    """A step of `n` rows with random inputs."""

    def __init__(
        self,
        n: int,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        *,
        odd: bool,
        key_decays: bool = False,
        chains: Sequence[int] = (),
    ) -> None:
        key_heads, heads, key_dim, value_dim, taps = shape
        self.shape, make = shape, Inputs(n * heads, dtype)
        self.steps: Steps = make_steps(n, make, odd=odd, early_reads=odd, chains=chains)
        channels = 2 * key_heads * key_dim + heads * value_dim
        rest = heads + 6 if key_decays else heads * (value_dim + 2)
        self.projected = make.normal(n, channels + rest)
        self.key_steps, self.output_gates = (
            make.normal(n, heads * size, dtype=torch.float32) if key_decays else None
            for size in (key_dim, value_dim)
        )
        self.conv = make.normal(channels, taps)
        self.conv_states = self.steps.states(make, channels, taps - 1)
        self.states = self.steps.states(make, heads, key_dim, value_dim)
        biases = heads * (key_dim if key_decays else 1)
        self.decay, self.step_bias = (
            make.normal(size, dtype=torch.float32) for size in (heads, biases)
        )
        self.norm = make.normal(value_dim, dtype=torch.float32)
        self.out = poisoned(n, heads * value_dim, dtype=dtype)

    def reference(self, states: Sequence[Tensor] = ()) -> tuple[Tensor, Tensor, Tensor]:
        """Return the output, the states and the inputs of the convolution after the step.

        Given those before it by slot, or with the case's own ones.
        """
        all_states, conv_states = states or (self.states, self.conv_states)
        key_heads, heads, key_dim, value_dim, _ = self.shape
        keys, values, n = key_heads * key_dim, heads * value_dim, len(self.out)
        columns = self.projected.double()
        if self.key_steps is None or self.output_gates is None:
            sizes = [2 * keys + values, values, heads, heads]
            qkv, z, beta, step = torch.split(columns, sizes, 1)
            step, gates = step.unsqueeze(2), F.silu(z)
        else:
            qkv, beta, _ = torch.split(columns, [2 * keys + values, heads, 6], 1)
            step = self.key_steps.double().view(n, heads, key_dim)
            gates = self.output_gates.double().sigmoid()
        before = self.steps.read(conv_states)
        mixed, conv_after = convolve(qkv, before, self.conv, None)
        q, k, v = torch.split(F.silu(mixed), [keys, keys, values], 1)
        q, k = (x.reshape(n, key_heads, key_dim) for x in (q, k))
        q, k = (x / (x.square().sum(2, keepdim=True) + EPS).sqrt() for x in (q, k))
        q, k = (x.repeat_interleave(heads // key_heads, 1) for x in (q, k))
        bias = self.step_bias.double().view(heads, -1)
        g = -self.decay.double().exp().unsqueeze(1) * F.softplus(step + bias)
        state = self.steps.read(all_states) * g.exp().unsqueeze(3)
        error = v.view(n, heads, value_dim) - torch.einsum("nhkv,nhk->nhv", state, k)
        update = error * beta.sigmoid().unsqueeze(2)
        state = state + k.unsqueeze(3) * update.unsqueeze(2)
        out = torch.einsum("nhkv,nhk->nhv", state, q) * key_dim**-0.5
        out = F.rms_norm(out, (value_dim,), self.norm.double(), EPS).reshape(n, -1) * gates
        return out, state, conv_after

    def run(self, gpu: Gpu) -> None:
        gated_delta_step(
            gpu,
            self.projected,
            self.out,
            conv=self.conv,
            decay=self.decay,
            step_bias=self.step_bias,
            norm=self.norm,
            conv_states=self.conv_states,
            states=self.states,
            rows=self.steps.rows,
            num_key_heads=self.shape[0],
            activation="silu",
            norm_eps=EPS,
            key_steps=self.key_steps,
            output_gates=self.output_gates,
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("n", "odd"), [(1, False), (5, True), (5, False)])
@pytest.mark.parametrize("key_decays", [False, True])
def test_equals_the_recurrence(
    gpu: Gpu, dtype, shape: tuple[int, ...], n: int, odd: bool, key_decays: bool
) -> None:
    case = Case(n, shape, dtype, odd=odd, key_decays=key_decays)
    out, state, conv_after = case.reference()
    states, conv_states = case.states.clone(), case.conv_states.clone()
    case.run(gpu)
    used, written = case.steps.used, [case.steps.after[row] for row in case.steps.used]
    assert_close(case.out[used], out[used], max(ROUNDING[dtype], FP32_TOLERANCE))
    assert_close(case.states[written], state[used], FP32_TOLERANCE)
    assert_close(case.conv_states[written], conv_after[used], FP32_TOLERANCE)
    case.steps.assert_only_after_written(states, case.states)
    case.steps.assert_only_after_written(conv_states, case.conv_states)
    if case.steps.unused >= 0:
        assert not case.out[case.steps.unused].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("key_decays", [False, True])
def test_rows_of_one_sequence_follow_each_other(
    gpu: Gpu, dtype, shape: tuple[int, ...], odd: bool, key_decays: bool
) -> None:
    """The state after each row is in its own slot; other sequences have one row or several."""
    case = Case(16, shape, dtype, odd=odd, key_decays=key_decays, chains=(4, 1, 9, 1))
    before = case.states.clone(), case.conv_states.clone()
    out, expected = case.steps.in_order(before, case.reference)
    case.run(gpu)
    used, written = case.steps.used, [case.steps.after[row] for row in case.steps.used]
    assert_close(case.out[used], out, max(ROUNDING[dtype], FP32_TOLERANCE))
    found = case.states, case.conv_states
    for each, wanted, old in zip(found, expected, before, strict=True):
        assert_close(each[written], wanted[written], FP32_TOLERANCE)
        case.steps.assert_only_after_written(old, each)
    assert not case.out[case.steps.unused].any()


def test_wrong_tensors_raise(gpu: Gpu) -> None:
    case = Case(2, SHAPES[1], torch.bfloat16, odd=False)
    case.projected = case.projected[:, :-8].contiguous()
    with pytest.raises(ValueError, match="projected must be"):
        case.run(gpu)
    case = Case(2, SHAPES[1], torch.bfloat16, odd=False, key_decays=True)
    case.output_gates = None
    with pytest.raises(ValueError, match="come together"):
        case.run(gpu)
    case = Case(2, SHAPES[1], torch.bfloat16, odd=False)
    case.states = case.states[..., :39].contiguous()
    with pytest.raises(ValueError, match="heads of 24 by 39"):
        case.run(gpu)
