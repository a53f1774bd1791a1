"""causal_conv_step against fp64."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.mixers.steps import causal_conv_step
from tests.support.kernels.case import DTYPES, ROUNDING, Inputs, assert_close, poisoned
from tests.support.kernels.mixer_steps import FP32_TOLERANCE, convolve, make_steps

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "width", "taps"), [(1, 2048, 3), (5, 300, 4), (2, 7, 2)])
@pytest.mark.parametrize("odd", [False, True])
def test_equals_fp64(gpu: Gpu, dtype, n: int, width: int, taps: int, odd: bool) -> None:
    make = Inputs(n * width, dtype)
    steps = make_steps(n, make, odd=odd, early_reads=odd)
    projected, conv = make.normal(n, 3 * width), make.normal(width, taps)
    bias = make.normal(width) if odd else None
    states = steps.states(make, width, taps - 1)
    before, out = states.clone(), poisoned(n, width, dtype=dtype)
    b, c, x = projected.double().chunk(3, 1)
    mixed, after = convolve(b * x, steps.read(states), conv, bias)
    causal_conv_step(
        gpu, projected, out, conv=conv, conv_bias=bias, conv_states=states, rows=steps.rows
    )
    used = steps.used
    assert_close(out[used], (c * mixed)[used], max(ROUNDING[dtype], FP32_TOLERANCE))
    assert_close(states[[steps.after[row] for row in used]], after[used], FP32_TOLERANCE)
    steps.assert_only_after_written(before, states)
    if steps.unused >= 0:
        assert not out[steps.unused].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "width", "taps"), [(1, 1000, 4), (4, 7, 2)])
def test_plain_convolution_equals_fp64(gpu: Gpu, dtype, n: int, width: int, taps: int) -> None:
    """The inputs are the first columns, and the output is fp32."""
    make = Inputs(n * width, dtype)
    steps = make_steps(n, make, odd=True)
    projected, conv, bias = make.normal(n, 2 * width), make.normal(width, taps), make.normal(width)
    states, out = steps.states(make, width, taps - 1), poisoned(n, width, dtype=torch.float32)
    mixed, after = convolve(projected.double()[:, :width], steps.read(states), conv, bias)
    causal_conv_step(
        gpu,
        projected,
        out,
        conv=conv,
        conv_bias=bias,
        conv_states=states,
        rows=steps.rows,
        activation="silu",
    )
    used = steps.used
    assert_close(out[used], torch.nn.functional.silu(mixed)[used], FP32_TOLERANCE)
    assert_close(states[[steps.after[row] for row in used]], after[used], FP32_TOLERANCE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("taps", [2, 3, 4])
@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("odd", [False, True])
def test_rows_of_one_sequence_follow_each_other(
    gpu: Gpu, dtype, taps: int, activation: str | None, odd: bool
) -> None:
    """The state after each row is in its own slot; other sequences have one row or several."""
    n, width = 16, 300
    make = Inputs(taps, dtype)
    steps = make_steps(n, make, odd=odd, early_reads=odd, chains=(4, 1, 9, 1))
    projected, conv, bias = make.normal(n, 3 * width), make.normal(width, taps), make.normal(width)
    states = steps.states(make, width, taps - 1)
    before = states.clone()
    out = poisoned(n, width, dtype=torch.float32 if activation else dtype)
    b, c, x = projected.double().chunk(3, 1)

    def compute(known: Sequence[Tensor]) -> Sequence[Tensor]:
        inputs = b if activation else b * x
        mixed, after = convolve(inputs, steps.read(known[0]), conv, bias)
        return (torch.nn.functional.silu(mixed) if activation else c * mixed), after

    expected, (after,) = steps.in_order([before], compute)
    causal_conv_step(
        gpu,
        projected,
        out,
        conv=conv,
        conv_bias=bias,
        conv_states=states,
        rows=steps.rows,
        activation=activation,
    )
    written = [steps.after[row] for row in steps.used]
    rounding = FP32_TOLERANCE if activation else max(ROUNDING[dtype], FP32_TOLERANCE)
    assert_close(out[steps.used], expected, rounding)
    assert_close(states[written], after[written], FP32_TOLERANCE)
    steps.assert_only_after_written(before, states)
    assert not out[steps.unused].any()


def test_wrong_tensors_raise(gpu: Gpu) -> None:
    make = Inputs(1)
    rows = make_steps(2, make, odd=False).rows
    states, out = make.normal(7, 8, 2), make.normal(2, 8)
    with pytest.raises(ValueError, match="23 columns"):
        causal_conv_step(
            gpu,
            make.normal(2, 23),
            out,
            conv=make.normal(8, 3),
            conv_bias=None,
            conv_states=states,
            rows=rows,
        )
    with pytest.raises(ValueError, match="2 rows, but slots for 1"):
        type(rows)(rows.slots[:, :1].contiguous(), rows.positions).arguments()
