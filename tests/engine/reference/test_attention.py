"""Attention of 16-bit activations on the CPU against fp64, with and without fast GEMMs."""

from collections.abc import Iterator

import pytest
import torch

from swiftchat.engine.linear import half_gemm
from swiftchat.engine.linear.half_gemm import has_fast_gemm
from swiftchat.engine.reference.attention import AttentionPlan, attention

# Half a unit in the last place: probabilities, partial sums and results are rounded to it. Scores
# of up to 4 that are rounded change probabilities by up to 4 times as much.
HALF_ULP = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
HEAD_DIM, CONTEXT = 24, 37


@pytest.fixture(params=[False, True], ids=["slow", "fast"], autouse=True)
def is_fast(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(half_gemm, "has_onednn_gemm", lambda dtype: request.param)
    has_fast_gemm.cache_clear()
    yield
    has_fast_gemm.cache_clear()


def exact_attention(
    q: torch.Tensor, kv: torch.Tensor, mask: torch.Tensor, softcap: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention in fp64 and the sums of its terms' absolute values: [n, heads * head_dim] each.

    `q` is [n, heads, head_dim], `kv` [context, 2 * kv_heads, head_dim]; `mask` is added to the
    scores [heads, n, context].
    """
    group_size = 2 * q.shape[1] // kv.shape[1]
    keys, values = kv.double().repeat_interleave(group_size, 1).transpose(0, 1).chunk(2)
    scores = q.double().transpose(0, 1) @ keys.transpose(1, 2) * HEAD_DIM**-0.5
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    probs = (scores + mask).softmax(-1)
    found = (probs @ values, probs @ values.abs())
    return found[0].transpose(0, 1).flatten(1), found[1].transpose(0, 1).flatten(1)


@pytest.mark.parametrize("dtype", list(HALF_ULP))
@pytest.mark.parametrize("heads, kv_heads", [(3, 3), (6, 2), (4, 1)])
@pytest.mark.parametrize("num_rows", [1, 2, CONTEXT])
@pytest.mark.parametrize("kind", ["causal", "window", "alibi", "softcap"])
def test_attention_against_fp64(
    dtype: torch.dtype, heads: int, kv_heads: int, num_rows: int, kind: str
) -> None:
    torch.manual_seed(heads)
    q = torch.randn(num_rows, heads, HEAD_DIM).to(dtype)
    kv = torch.randn(CONTEXT, 2 * kv_heads, HEAD_DIM).to(dtype)
    keys, rows = torch.arange(CONTEXT), torch.arange(CONTEXT - num_rows, CONTEXT).unsqueeze(1)
    seen = keys <= rows
    if kind == "window":
        seen &= keys > rows - 5
    bias = torch.zeros(heads, num_rows, CONTEXT)
    if kind == "alibi":
        bias = (keys - rows) * 2.0 ** -torch.arange(1, heads + 1.0).view(-1, 1, 1)
    bias = bias.masked_fill(~seen, float("-inf"))
    has_mask = kind == "window" or 1 < num_rows < CONTEXT
    plan = AttentionPlan(
        rows=slice(0, num_rows),
        first_slot=0,
        context_len=CONTEXT,
        blocks=None,
        mask=bias if kind == "alibi" else seen if has_mask else None,
        is_causal=kind != "alibi" and not has_mask and num_rows > 1,
        kv_views=None,
    )
    softcap = 3.0 if kind == "softcap" else None
    cache, scale = kv.unsqueeze(0), HEAD_DIM**-0.5
    found = attention(q, 0, cache, [plan], scale, heads != kv_heads, softcap)
    expected, sizes = exact_attention(q, kv, bias, softcap)
    assert found.dtype == dtype and found.shape == expected.shape
    assert ((found.double() - expected).abs() <= 6 * HALF_ULP[dtype] * sizes).all()
