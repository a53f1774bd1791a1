"""latent_rotary against fp64. Tolerance: results are rounded once."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.attention.latent_attention import latent_rotary
from tests.support.kernels.case import ROUNDING, Inputs, assert_close, poisoned

pytestmark = pytest.mark.gpu


def rotate(x: torch.Tensor, angles: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """Rotate x [..., 2 * pairs] by angles [..., 2 * pairs], cosines first; fp64."""
    x, (cos, sin) = x.double(), angles.double().chunk(2, -1)
    first, second = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("interleaved", "is_rotated"), [(False, True), (True, True), (False, False)]
)
@pytest.mark.parametrize(
    ("n", "heads", "head_dim", "rank", "rope"),
    [(1, 16, 192, 512, 64), (5, 40, 96, 256, 32), (3, 7, 72, 512, 64), (2, 128, 192, 512, 64)],
)
def test_rotation_and_cache(
    gpu: Gpu,
    dtype,
    interleaved: bool,
    is_rotated: bool,
    n: int,
    heads: int,
    head_dim: int,
    rank: int,
    rope: int,
) -> None:
    make = Inputs(n + heads, dtype)
    wide = make.normal(n, heads * head_dim + rank + rope)
    q, row = wide[:, : heads * head_dim].view(n, heads, head_dim), wide[:, heads * head_dim :]
    before, weight = wide.clone(), make.normal(rank)
    cos_sin = make.normal(50, rope, dtype=torch.float32)
    positions = make.integers(0, 50, n)
    slots = make.permutation(24)[:n].contiguous()
    slots[-1] = -1 if n > 1 else slots[-1]
    cache = poisoned(3, 1, 8, rank + rope + 8, dtype=dtype)
    latent_rotary(
        gpu,
        q,
        row,
        cache,
        norm_weight=weight,
        cos_sin=cos_sin if is_rotated else None,
        positions=positions,
        slot_mapping=slots,
        interleaved=interleaved,
        eps=1e-6,
        kv_scale=1.5,
    )
    if not is_rotated:
        cos_sin[:, : rope // 2], cos_sin[:, rope // 2 :] = 1.0, 0.0
    angles, old = cos_sin[positions.long()], before[:, : heads * head_dim].view(n, heads, -1)
    assert torch.equal(q[..., : head_dim - rope], old[..., : head_dim - rope])
    expected = rotate(old[..., head_dim - rope :], angles.unsqueeze(1), interleaved)
    assert_close(q[..., head_dim - rope :], expected, ROUNDING[dtype])
    assert torch.equal(row, before[:, heads * head_dim :])

    stored = [i for i, slot in enumerate(slots.tolist()) if slot >= 0]
    latent = row[stored, :rank].double()
    norm = (latent.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * 1.5
    key = rotate(row[stored, rank:], angles[stored], interleaved)
    rows = cache.view(24, -1)
    found = rows[slots[stored].long()]
    expected = torch.cat([latent * norm * weight.double(), key], 1)
    assert_close(found[:, : rank + rope], expected, ROUNDING[dtype])
    assert found[:, rank + rope :].isnan().all()
    others = torch.ones(24, dtype=torch.bool, device="cuda")
    others[slots[stored].long()] = False
    assert rows[others].isnan().all()


def test_wrong_arguments_raise(gpu: Gpu) -> None:
    make = Inputs(1, torch.bfloat16)
    arguments = {
        "norm_weight": make.normal(256),
        "cos_sin": make.normal(9, 32, dtype=torch.float32),
        "positions": make.integers(0, 9, 2),
        "slot_mapping": make.integers(0, 9, 2),
        "interleaved": False,
        "eps": 1e-6,
    }
    q, row, cache = make.normal(2, 3, 96), make.normal(2, 288), make.normal(3, 1, 8, 288)
    for match, wrong in (
        ("row must be", {"row": row[:, :280]}),
        ("does not fit", {"cache": cache[..., :280]}),
        ("positions must be", {"positions": arguments["positions"].long()}),
        ("norm_weight must be", {"norm_weight": arguments["norm_weight"].float()}),
    ):
        with pytest.raises(ValueError, match=match):
            latent_rotary(gpu, **{"q": q, "row": row, "cache": cache, **arguments, **wrong})
