"""mamba2_scan against the recurrence in fp64, token by token."""

import pytest
import torch
import torch.nn.functional as F

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.mixers.scans import mamba2_scan
from tests.support.kernels.case import DTYPES, ROUNDING, Inputs, assert_close, poisoned
from tests.support.kernels.mixer_rows import make_prompts
from tests.support.kernels.mixer_steps import FP32_TOLERANCE

pytestmark = pytest.mark.gpu
# heads, head_dim, groups, state_size: as Granite 4's and Falcon-H1's.
SHAPES = [(4, 64, 1, 128), (4, 64, 2, 256), (2, 80, 2, 12), (6, 6, 2, 100)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("lengths", [(16,), (40, 1, 0, 2, 33), (150,)])
@pytest.mark.parametrize("gated", [False, True])
def test_equals_the_recurrence(
    gpu: Gpu, dtype, shape: tuple[int, ...], lengths: tuple[int, ...], gated: bool
) -> None:
    heads, head_dim, groups, state_size = shape
    make = Inputs(heads * head_dim, dtype)
    prompts = make_prompts(lengths, make)
    n, width, shared = prompts.num_tokens, heads * head_dim, groups * state_size
    mixed = make.normal(n, width + 2 * shared, dtype=torch.float32)
    projected = make.normal(n, 2 * width + 2 * shared + heads)
    decay, step_bias, skip = (make.normal(heads, dtype=torch.float32) for _ in range(3))
    states = prompts.states(make, heads, head_dim, state_size)
    out = poisoned(n, width, dtype=dtype if gated else torch.float32)
    before = states.clone()
    mamba2_scan(
        gpu,
        mixed,
        projected,
        out,
        decay=decay,
        step_bias=step_bias,
        skip=skip,
        states=states,
        rows=prompts.rows,
        num_groups=groups,
        gated=gated,
        min_step=0.3,
        z_scale=0.8,
        step_scale=1.3,
    )
    x, b, c = torch.split(mixed.double(), [width, shared, shared], 1)
    x = x.reshape(n, heads, head_dim)
    b, c = (y.reshape(n, groups, state_size).repeat_interleave(heads // groups, 1) for y in (b, c))
    step = 1.3 * projected[:, -heads:].double() + step_bias.double()
    delta = F.softplus(step).clamp(min=0.3)
    forget = (-decay.double().exp() * delta).exp()
    gates = F.silu(0.8 * projected[:, :width].double())
    rounding = max(ROUNDING[out.dtype], FP32_TOLERANCE)
    for span, slot, state in prompts.computed(before):
        outputs = []
        for i in range(span.start, span.stop):
            added = (delta[i].unsqueeze(1) * x[i]).unsqueeze(2) * b[i].unsqueeze(1)
            state = state * forget[i][:, None, None] + added
            output = torch.einsum("hps,hs->hp", state, c[i])
            outputs.append((output + x[i] * skip.double().unsqueeze(1)).reshape(-1))
        expected = torch.stack(outputs)
        assert_close(out[span], expected * gates[span] if gated else expected, rounding)
        assert_close(states[slot], state, FP32_TOLERANCE)
    prompts.assert_only_these_written(out, before, states)


def test_wrong_tensors_raise(gpu: Gpu) -> None:
    make = Inputs(1)
    prompts = make_prompts((4,), make)
    n = prompts.num_tokens
    for state_size, match in ((10, "states of 10"), (12, "projected must be")):
        with pytest.raises(ValueError, match=match):
            mamba2_scan(
                gpu,
                make.normal(n, 8 + 2 * state_size),
                make.normal(n, 20),
                make.normal(n, 8),
                decay=make.normal(1),
                step_bias=make.normal(1),
                skip=make.normal(1),
                states=make.normal(4, 1, 8, state_size),
                rows=prompts.rows,
                num_groups=1,
                gated=False,
            )
