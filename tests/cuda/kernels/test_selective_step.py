"""selective_step against the recurrence in fp64."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.mixers.selective import selective_step
from tests.support.kernels.case import DTYPES, ROUNDING, assert_close, poisoned
from tests.support.kernels.mixer_steps import FP32_TOLERANCE, make_steps
from tests.support.kernels.selective import SHAPES, Selective

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "state_size"), SHAPES)
@pytest.mark.parametrize(("n", "odd"), [(1, False), (5, True), (5, False)])
def test_equals_the_recurrence(
    gpu: Gpu, dtype: torch.dtype, width: int, state_size: int, n: int, odd: bool
) -> None:
    case = Selective(n, width, state_size, dtype)
    steps = make_steps(n, case.make, odd=odd, early_reads=odd)
    states, out = steps.states(case.make, width, state_size), poisoned(n, width, dtype=dtype)
    before = states.clone()
    selective_step(gpu, case.inputs, case.weights, out, states=states, rows=steps.rows)
    rounding = max(ROUNDING[dtype], FP32_TOLERANCE)
    for row in steps.used:
        expected, after = case.reference(row, steps.read(before)[row])
        assert_close(out[row], expected, rounding)
        assert_close(states[steps.after[row]], after, FP32_TOLERANCE)
    steps.assert_only_after_written(before, states)
    if steps.unused >= 0:
        assert not out[steps.unused].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "state_size"), SHAPES)
@pytest.mark.parametrize("odd", [False, True])
def test_rows_of_one_sequence_follow_each_other(
    gpu: Gpu, dtype: torch.dtype, width: int, state_size: int, odd: bool
) -> None:
    """The state after each row is in its own slot; other sequences have one row or several."""
    n = 16
    case = Selective(n, width, state_size, dtype)
    steps = make_steps(n, case.make, odd=odd, early_reads=odd, chains=(4, 1, 9, 1))
    states, out = steps.states(case.make, width, state_size), poisoned(n, width, dtype=dtype)
    before = states.clone()

    def compute(known: Sequence[Tensor]) -> Sequence[Tensor]:
        rows = enumerate(steps.read(known[0]))
        outputs, after = zip(*(case.reference(row, state) for row, state in rows), strict=True)
        return torch.stack(outputs), torch.stack(after)

    expected, (after,) = steps.in_order([before], compute)
    selective_step(gpu, case.inputs, case.weights, out, states=states, rows=steps.rows)
    written = [steps.after[row] for row in steps.used]
    assert_close(out[steps.used], expected, max(ROUNDING[dtype], FP32_TOLERANCE))
    assert_close(states[written], after[written], FP32_TOLERANCE)
    steps.assert_only_after_written(before, states)
    assert not out[steps.unused].any()


def test_wrong_tensors_raise(gpu: Gpu) -> None:
    case = Selective(2, 8, 12, torch.bfloat16)
    rows, out = make_steps(2, case.make, odd=False).rows, case.make.normal(2, 8)
    for states, match in (
        (case.make.normal(7, 8, 10, dtype=torch.float32), "states of 10"),
        (case.make.normal(7, 8, 68, dtype=torch.float32), "states of 68"),
        (case.make.normal(7, 8, 16, dtype=torch.float32), "states must be"),
        (case.make.normal(7, 9, 12, dtype=torch.float32), "states must be"),
    ):
        with pytest.raises(ValueError, match=match):
            selective_step(gpu, case.inputs, case.weights, out, states=states, rows=rows)
