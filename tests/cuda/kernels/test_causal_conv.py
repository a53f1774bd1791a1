"""causal_conv against fp64, token by token."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.mixers.scans import causal_conv
from tests.support.kernels.case import DTYPES, ROUNDING, Inputs, assert_close, poisoned
from tests.support.kernels.mixer_rows import Prompts, make_prompts
from tests.support.kernels.mixer_steps import FP32_TOLERANCE, convolve

pytestmark = pytest.mark.gpu
LENGTHS = [(16,), (40, 1, 0, 2, 33), (1, 17)]


def expected_outputs(
    prompts: Prompts, inputs: Tensor, states: Tensor, conv: Tensor, bias: Tensor | None
) -> Iterator[tuple[slice, int, Tensor, Tensor]]:
    """Yield each row's tokens, slot, convolution, and inputs before the next token."""
    for span, slot, state in prompts.computed(states):
        results, last = [], state.unsqueeze(0)
        for token in inputs[span]:
            result, last = convolve(token.unsqueeze(0), last, conv, bias)
            results.append(result)
        yield span, slot, torch.cat(results), last[0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize(("channels", "taps"), [(300, 4), (130, 2), (64, 3)])
def test_equals_fp64(gpu: Gpu, dtype, lengths: tuple[int, ...], channels: int, taps: int) -> None:
    make = Inputs(channels, dtype)
    prompts = make_prompts(lengths, make)
    projected, conv = make.normal(prompts.num_tokens, channels + 9), make.normal(channels, taps)
    bias = make.normal(channels) if taps % 2 else None
    states = prompts.states(make, channels, taps - 1)
    out = poisoned(prompts.num_tokens, channels, dtype=torch.float32)
    scales = torch.full((channels,), 0.7, dtype=torch.float64, device=out.device)
    scales[20:] = 1.2
    scales[50:] = 0.4
    inputs = projected[:, 5 : 5 + channels].double() * scales
    expected = list(expected_outputs(prompts, inputs, states, conv, bias))
    before = states.clone()
    causal_conv(
        gpu,
        projected,
        out,
        conv=conv,
        conv_bias=bias,
        conv_states=states,
        rows=prompts.rows,
        first_column=5,
        activation="silu",
        scales=(0.7, 1.2, 0.4),
        scale_ends=(20, 50),
    )
    for span, slot, output, last in expected:
        assert_close(out[span], F.silu(output), FP32_TOLERANCE)
        assert_close(states[slot], last, FP32_TOLERANCE)
    prompts.assert_only_these_written(out, before, states)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_gated_equals_fp64(gpu: Gpu, dtype, lengths: tuple[int, ...]) -> None:
    width, make = 200, Inputs(7, dtype)
    prompts = make_prompts(lengths, make)
    projected, conv = make.normal(prompts.num_tokens, 3 * width), make.normal(width, 3)
    bias, states = make.normal(width), prompts.states(make, width, 2)
    out = poisoned(prompts.num_tokens, width, dtype=dtype)
    b, c, x = projected.double().chunk(3, 1)
    expected = list(expected_outputs(prompts, b * x, states, conv, bias))
    before = states.clone()
    causal_conv(
        gpu, projected, out, conv=conv, conv_bias=bias, conv_states=states, rows=prompts.rows
    )
    for span, slot, output, last in expected:
        assert_close(out[span], c[span] * output, max(ROUNDING[dtype], FP32_TOLERANCE))
        assert_close(states[slot], last, FP32_TOLERANCE)
    prompts.assert_only_these_written(out, before, states)


def test_wrong_tensors_raise(gpu: Gpu) -> None:
    make = Inputs(1)
    prompts = make_prompts((4,), make)
    n, states, conv = prompts.num_tokens, make.normal(4, 8, 2), make.normal(8, 3)
    for columns, match in ((23, "do not fit 8 channels"), (24, "out must be")):
        with pytest.raises(ValueError, match=match):
            causal_conv(
                gpu,
                make.normal(n, columns),
                make.normal(n, 7),
                conv=conv,
                conv_bias=None,
                conv_states=states,
                rows=prompts.rows,
            )
