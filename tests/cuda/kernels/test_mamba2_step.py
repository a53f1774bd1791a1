"""mamba2_step against the recurrence in fp64."""

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.mixers.steps import mamba2_step
from tests.support.kernels.case import DTYPES, ROUNDING, Inputs, assert_close, poisoned
from tests.support.kernels.mixer_steps import FP32_TOLERANCE, Steps, convolve, make_steps

pytestmark = pytest.mark.gpu

# heads, head_dim, groups, state_size, taps; the first are Granite 4's and Falcon-H1's.
SHAPES = [(48, 64, 1, 128, 4), (24, 64, 1, 256, 4), (8, 80, 8, 128, 4), (6, 6, 2, 12, 3)]
SCALES = (0.7, 1.2, 0.6, 1.5, 0.8)


class Case:
    """A step of `n` rows with random inputs; without `plain`, biases and scales too."""

    def __init__(
        self,
        n: int,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        *,
        odd: bool,
        plain: bool,
        chains: Sequence[int] = (),
    ) -> None:
        heads, head_dim, groups, state_size, taps = shape
        self.shape, make = shape, Inputs(n * heads, dtype)
        self.steps: Steps = make_steps(n, make, odd=odd, early_reads=odd, chains=chains)
        width = heads * head_dim
        channels = width + 2 * groups * state_size
        self.projected = make.normal(n, width + channels + heads)
        self.conv = make.normal(channels, taps)
        self.conv_bias = None if plain else make.normal(channels)
        self.scales = (1.0,) * 5 if plain else SCALES
        self.min_step = 0.0 if plain else 0.4
        self.conv_states = self.steps.states(make, channels, taps - 1)
        self.states = self.steps.states(make, heads, head_dim, state_size)
        self.decay, self.step_bias, self.skip = (
            make.normal(heads, dtype=torch.float32) for _ in range(3)
        )
        self.out = poisoned(n, width, dtype=torch.float32 if plain else dtype)
        self.gated = not plain

    def reference(self, states: Sequence[Tensor] = ()) -> tuple[Tensor, Tensor, Tensor]:
        """Return the output, the states and the inputs of the convolution after the step.

        Given those before it by slot, or with the case's own ones.
        """
        all_states, conv_states = states or (self.states, self.conv_states)
        heads, head_dim, groups, state_size, _ = self.shape
        n, width, shared = len(self.out), heads * head_dim, groups * state_size
        parts = torch.split(self.projected.double(), [width, width, shared, shared, heads], 1)
        z, x, b, c, step = (part * s for part, s in zip(parts, self.scales, strict=True))
        mixed, conv_after = convolve(
            torch.cat([x, b, c], 1), self.steps.read(conv_states), self.conv, self.conv_bias
        )
        x, b, c = torch.split(F.silu(mixed), [width, shared, shared], 1)
        x = x.reshape(n, heads, head_dim)
        b, c = (
            y.reshape(n, groups, state_size).repeat_interleave(heads // groups, 1) for y in (b, c)
        )
        delta = F.softplus(step + self.step_bias.double()).clamp(min=self.min_step)
        forget = (-self.decay.double().exp() * delta).exp()
        state = self.steps.read(all_states) * forget[..., None, None]
        state = state + (delta.unsqueeze(2) * x).unsqueeze(3) * b.unsqueeze(2)
        out = torch.einsum("nhps,nhs->nhp", state, c) + x * self.skip.double().view(-1, 1)
        out = out.reshape(n, -1)
        return (out * F.silu(z) if self.gated else out), state, conv_after

    def run(self, gpu: Gpu) -> None:
        mamba2_step(
            gpu,
            self.projected,
            self.out,
            conv=self.conv,
            conv_bias=self.conv_bias,
            decay=self.decay,
            step_bias=self.step_bias,
            skip=self.skip,
            conv_states=self.conv_states,
            states=self.states,
            rows=self.steps.rows,
            num_groups=self.shape[2],
            activation="silu",
            gated=self.gated,
            min_step=self.min_step,
            scales=self.scales,
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("n", "odd", "plain"), [(1, False, True), (5, True, False), (5, False, False)]
)
def test_equals_the_recurrence(
    gpu: Gpu, dtype, shape: tuple[int, ...], n: int, odd: bool, plain: bool
) -> None:
    case = Case(n, shape, dtype, odd=odd, plain=plain)
    out, state, conv_after = case.reference()
    states, conv_states = case.states.clone(), case.conv_states.clone()
    case.run(gpu)
    used, written = case.steps.used, [case.steps.after[row] for row in case.steps.used]
    rounding = FP32_TOLERANCE if plain else max(ROUNDING[dtype], FP32_TOLERANCE)
    assert_close(case.out[used], out[used], rounding)
    assert_close(case.states[written], state[used], FP32_TOLERANCE)
    assert_close(case.conv_states[written], conv_after[used], FP32_TOLERANCE)
    case.steps.assert_only_after_written(states, case.states)
    case.steps.assert_only_after_written(conv_states, case.conv_states)
    if case.steps.unused >= 0:
        assert not case.out[case.steps.unused].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("odd", [False, True])
def test_rows_of_one_sequence_follow_each_other(
    gpu: Gpu, dtype, shape: tuple[int, ...], odd: bool
) -> None:
    """The state after each row is in its own slot; other sequences have one row or several."""
    case = Case(16, shape, dtype, odd=odd, plain=odd, chains=(4, 1, 9, 1))
    before = case.states.clone(), case.conv_states.clone()
    out, expected = case.steps.in_order(before, case.reference)
    case.run(gpu)
    used, written = case.steps.used, [case.steps.after[row] for row in case.steps.used]
    rounding = FP32_TOLERANCE if odd else max(ROUNDING[dtype], FP32_TOLERANCE)
    assert_close(case.out[used], out, rounding)
    found = case.states, case.conv_states
    for each, wanted, old in zip(found, expected, before, strict=True):
        assert_close(each[written], wanted[written], FP32_TOLERANCE)
        case.steps.assert_only_after_written(old, each)
    assert not case.out[case.steps.unused].any()


def test_wrong_tensors_raise(gpu: Gpu) -> None:
    case = Case(2, SHAPES[3], torch.bfloat16, odd=False, plain=False)
    case.out = case.out.half()
    with pytest.raises(ValueError, match="out must be"):
        case.run(gpu)
    case = Case(2, SHAPES[3], torch.bfloat16, odd=False, plain=False)
    case.states = case.states[..., :11].contiguous()
    with pytest.raises(ValueError, match="states of 11"):
        case.run(gpu)
