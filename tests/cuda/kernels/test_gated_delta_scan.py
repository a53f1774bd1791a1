"""gated_delta_scan against the recurrence in fp64, token by token."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.mixers.scans import gated_delta_scan
from tests.support.kernels.case import DTYPES, Inputs, assert_close, poisoned
from tests.support.kernels.mixer_rows import make_prompts
from tests.support.kernels.mixer_steps import FP32_TOLERANCE

pytestmark = pytest.mark.gpu
EPS = 1e-6
# key heads, value heads, key_dim, value_dim: the first are Qwen3-Next's.
SHAPES = [(2, 4, 128, 128), (2, 6, 24, 40), (1, 2, 100, 4)]


def recurrence(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the outputs [n, heads, value_dim] and the last state, for one sequence."""
    outputs = []
    for i in range(len(q)):
        state = state * g[i].exp().unsqueeze(2)
        error = v[i] - torch.einsum("hkv,hk->hv", state, k[i])
        state = state + k[i].unsqueeze(2) * (error * beta[i].unsqueeze(1)).unsqueeze(1)
        outputs.append(torch.einsum("hkv,hk->hv", state, q[i]))
    return torch.stack(outputs), state


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("lengths", [(16,), (40, 1, 0, 2, 33), (150,)])
@pytest.mark.parametrize("key_decays", [False, True])
def test_equals_the_recurrence(
    gpu: Gpu, dtype, shape: tuple[int, ...], lengths: tuple[int, ...], key_decays: bool
) -> None:
    key_heads, heads, key_dim, value_dim = shape
    make = Inputs(heads * key_dim, dtype)
    prompts = make_prompts(lengths, make)
    n, keys, values = prompts.num_tokens, key_heads * key_dim, heads * value_dim
    mixed = make.normal(n, 2 * keys + values, dtype=torch.float32)
    rest = heads + 6 if key_decays else values + 2 * heads
    projected = make.normal(n, 2 * keys + values + rest)
    biases = heads * (key_dim if key_decays else 1)
    decay, step_bias = (make.normal(size, dtype=torch.float32) for size in (heads, biases))
    key_steps = make.normal(n, biases, dtype=torch.float32) if key_decays else None
    states = prompts.states(make, heads, key_dim, value_dim)
    before, out = states.clone(), poisoned(n, values, dtype=torch.float32)
    gated_delta_scan(
        gpu,
        mixed,
        projected,
        out,
        decay=decay,
        step_bias=step_bias,
        states=states,
        rows=prompts.rows,
        num_key_heads=key_heads,
        key_steps=key_steps,
    )
    q, k, v = torch.split(mixed.double(), [keys, keys, values], 1)
    q, k = (x.reshape(n, key_heads, key_dim) for x in (q, k))
    q, k = (x / (x.square().sum(2, keepdim=True) + EPS).sqrt() for x in (q, k))
    q, k = (x.repeat_interleave(heads // key_heads, 1) for x in (q * key_dim**-0.5, k))
    v = v.reshape(n, heads, value_dim)
    if key_steps is None:
        beta, step = projected.double()[:, -2 * heads :].chunk(2, 1)
    else:
        beta, step = projected.double()[:, -heads - 6 : -6], key_steps.double()
    steps = F.softplus(step + step_bias.double()).view(n, heads, -1)
    g = -decay.double().exp().unsqueeze(1) * steps
    for span, slot, state in prompts.computed(before):
        inputs = (x[span] for x in (q, k, v, g, beta.sigmoid()))
        expected, last = recurrence(*inputs, state)
        assert_close(out[span], expected.reshape(-1, values), FP32_TOLERANCE)
        assert_close(states[slot], last, FP32_TOLERANCE)
    prompts.assert_only_these_written(out, before, states)


def test_wrong_tensors_raise(gpu: Gpu) -> None:
    make = Inputs(1)
    prompts = make_prompts((4,), make)
    n = prompts.num_tokens
    for key_dim, match in ((10, "heads of 10 by 8"), (12, "projected must be")):
        with pytest.raises(ValueError, match=match):
            gated_delta_scan(
                gpu,
                make.normal(n, 2 * key_dim + 8),
                make.normal(n, 20),
                make.normal(n, 8),
                decay=make.normal(1),
                step_bias=make.normal(1),
                states=make.normal(4, 1, key_dim, 8),
                rows=prompts.rows,
                num_key_heads=1,
            )
