"""The chunked scans against their recurrences, token by token in fp64.

Tolerance 1e-4 of the largest value: fp32 sums of a chunk's tokens in another order.
"""

import pytest
import torch

from swiftchat.engine.reference.mixers.gated_delta import delta_rule
from swiftchat.engine.reference.mixers.kimi_delta import channel_delta_rule
from swiftchat.engine.reference.mixers.mamba import selective_scan
from swiftchat.engine.reference.mixers.mamba2 import scan
from swiftchat.engine.reference.mixers.scan import CHUNK_TOKENS

SEQS, HEADS, KEY_DIM, VALUE_DIM = 2, 3, 5, 4
LENGTHS = (1, 2, CHUNK_TOKENS, CHUNK_TOKENS + 1, 2 * CHUNK_TOKENS + 7)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


def decays(n: int) -> torch.Tensor:
    """Logarithmic decays, also some that forget everything."""
    g = -torch.rand(SEQS, HEADS, n) * 0.5
    g[..., ::13] = -40.0
    return g


@pytest.mark.parametrize("n", LENGTHS)
def test_the_gated_delta_rule_equals_its_recurrence(n: int) -> None:
    torch.manual_seed(n)
    q, k = (torch.randn(SEQS, HEADS, n, KEY_DIM) for _ in range(2))
    k /= k.norm(dim=-1, keepdim=True)
    v, beta = torch.randn(SEQS, HEADS, n, VALUE_DIM), torch.rand(SEQS, HEADS, n)
    g, state = decays(n), torch.randn(SEQS, HEADS, KEY_DIM, VALUE_DIM)
    found, last = delta_rule(q, k, v, g, beta, state)
    exact, outputs = state.double(), []
    for i in range(n):
        exact = exact * g[:, :, i, None, None].double().exp()
        key = k[:, :, i, :, None].double()
        correction = v[:, :, i, None].double() - key.transpose(2, 3) @ exact
        exact = exact + key @ (correction * beta[:, :, i, None, None])
        outputs.append((q[:, :, i, None].double() @ exact).squeeze(2))
    assert_close(found, torch.stack(outputs, 2))
    assert_close(last, exact)


@pytest.mark.parametrize("n", LENGTHS)
def test_the_delta_rule_with_a_decay_for_each_element_equals_its_recurrence(n: int) -> None:
    torch.manual_seed(n)
    q, k = (torch.randn(SEQS, HEADS, n, KEY_DIM) for _ in range(2))
    k /= k.norm(dim=-1, keepdim=True)
    v, beta = torch.randn(SEQS, HEADS, n, VALUE_DIM), torch.rand(SEQS, HEADS, n)
    g = torch.stack([decays(n).roll(i, 2) for i in range(KEY_DIM)], -1)
    state = torch.randn(SEQS, HEADS, KEY_DIM, VALUE_DIM)
    found, last = channel_delta_rule(q, k, v, g, beta, state)
    exact, outputs = state.double(), []
    for i in range(n):
        exact = exact * g[:, :, i, :, None].double().exp()
        key = k[:, :, i, :, None].double()
        correction = v[:, :, i, None].double() - key.transpose(2, 3) @ exact
        exact = exact + key @ (correction * beta[:, :, i, None, None])
        outputs.append((q[:, :, i, None].double() @ exact).squeeze(2))
    assert_close(found, torch.stack(outputs, 2))
    assert_close(last, exact)


@pytest.mark.parametrize("n", LENGTHS)
def test_the_mamba2_scan_equals_its_recurrence(n: int) -> None:
    torch.manual_seed(n)
    x = torch.randn(SEQS, HEADS, n, VALUE_DIM)
    b, c = (torch.randn(SEQS, HEADS, n, KEY_DIM) for _ in range(2))
    g, state = decays(n), torch.randn(SEQS, HEADS, VALUE_DIM, KEY_DIM)
    found, last = scan(x, b, c, g, state)
    exact, outputs = state.double(), []
    for i in range(n):
        exact = exact * g[:, :, i, None, None].double().exp()
        exact = exact + x[:, :, i, :, None].double() * b[:, :, i, None].double()
        outputs.append((exact @ c[:, :, i, :, None].double()).squeeze(3))
    assert_close(found, torch.stack(outputs, 2))
    assert_close(last, exact)


@pytest.mark.parametrize("n", LENGTHS)
def test_the_mamba_scan_equals_its_recurrence(n: int) -> None:
    torch.manual_seed(n)
    x, step = torch.randn(SEQS, n, HEADS), torch.rand(SEQS, n, HEADS)
    step[:, ::13] = 40.0  # forgets everything
    b, c = (torch.randn(SEQS, n, KEY_DIM) for _ in range(2))
    decay, state = -torch.rand(HEADS, KEY_DIM), torch.randn(SEQS, HEADS, KEY_DIM)
    found, last = selective_scan(x, b, c, step, decay, state)
    exact, outputs = state.double(), []
    for i in range(n):
        exact = exact * (step[:, i, :, None] * decay).double().exp()
        exact = exact + x[:, i, :, None].double() * b[:, i, None].double()
        outputs.append((exact @ c[:, i, :, None].double()).squeeze(2))
    assert_close(found, torch.stack(outputs, 1))
    assert_close(last, exact)
