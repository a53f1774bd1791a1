"""selective_scan against the recurrence in fp64, token by token."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.mixers.selective import selective_scan
from tests.support.kernels.case import DTYPES, ROUNDING, Inputs, assert_close, poisoned
from tests.support.kernels.mixer_rows import make_prompts
from tests.support.kernels.mixer_steps import FP32_TOLERANCE
from tests.support.kernels.selective import SHAPES, Selective

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "state_size"), SHAPES)
@pytest.mark.parametrize("lengths", [(16,), (40, 1, 0, 2, 33), (150,)])
def test_equals_the_recurrence(
    gpu: Gpu, dtype: torch.dtype, width: int, state_size: int, lengths: tuple[int, ...]
) -> None:
    prompts = make_prompts(lengths, Inputs(width, dtype))
    case = Selective(prompts.num_tokens, width, state_size, dtype)
    states = prompts.states(case.make, width, state_size)
    out, before = poisoned(prompts.num_tokens, width, dtype=dtype), states.clone()
    selective_scan(gpu, case.inputs, case.weights, out, states=states, rows=prompts.rows)
    rounding = max(ROUNDING[dtype], FP32_TOLERANCE)
    for span, slot, state in prompts.computed(before):
        expected = []
        for token in range(span.start, span.stop):
            output, state = case.reference(token, state)
            expected.append(output)
        assert_close(out[span], torch.stack(expected), rounding)
        assert_close(states[slot], state, FP32_TOLERANCE)
    prompts.assert_only_these_written(out, before, states)


def test_wrong_tensors_raise(gpu: Gpu) -> None:
    prompts = make_prompts((4,), Inputs(1, torch.bfloat16))
    case = Selective(prompts.num_tokens, 8, 12, torch.bfloat16)
    states = case.make.normal(4, 8, 12, dtype=torch.float32)
    with pytest.raises(ValueError, match="out must be"):
        out = case.make.normal(prompts.num_tokens, 8).half()
        selective_scan(gpu, case.inputs, case.weights, out, states=states, rows=prompts.rows)
    with pytest.raises(ValueError, match="positions must be"):
        fewer = Selective(prompts.num_tokens - 1, 8, 12, torch.bfloat16)
        out = case.make.normal(prompts.num_tokens - 1, 8)
        selective_scan(gpu, fewer.inputs, fewer.weights, out, states=states, rows=prompts.rows)
