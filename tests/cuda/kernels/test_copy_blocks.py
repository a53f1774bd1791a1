"""copy_blocks against torch's indexing: bitwise equal, other blocks unchanged."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.attention.copy_blocks import copy_blocks
from tests.support.kernels.case import DTYPES, Inputs

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("layers", "kv_heads", "block_size", "head_dim", "m"),
    [(1, 1, 4, 8, 1), (3, 3, 16, 80, 5), (2, 8, 64, 128, 4), (5, 2, 64, 96, 7)],
)
def test_copies_in_every_layer(
    gpu: Gpu, dtype, layers: int, kv_heads: int, block_size: int, head_dim: int, m: int
) -> None:
    make = Inputs(m * head_dim, dtype)
    cache = make.normal(layers, 3 * m, 2 * kv_heads, block_size, head_dim)
    blocks = make.permutation(3 * m)
    copies = torch.stack((blocks[:m], blocks[m : 2 * m]), 1).contiguous()
    copies[0, 0] = copies[-1, 0]  # one source twice
    expected = cache.clone()
    expected[:, copies[:, 1].long()] = cache[:, copies[:, 0].long()]
    copy_blocks(gpu, cache, copies)
    assert torch.equal(cache, expected)


def test_cache_of_more_than_2_gib(gpu: Gpu) -> None:
    blocks = 2**31 // (4 * 64 * 128 * 2) + 1
    cache = torch.empty(2, blocks, 4, 64, 128, dtype=torch.bfloat16, device="cuda")
    source = Inputs(1, torch.bfloat16).normal(2, 4, 64, 128)
    cache[:, 0] = source
    copies = torch.tensor([[0, blocks - 1]], dtype=torch.int32, device="cuda")
    copy_blocks(gpu, cache, copies)
    assert torch.equal(cache[:, blocks - 1], source)


@pytest.mark.parametrize("dtype", DTYPES)
def test_swaps_to_pinned_memory_and_back(gpu: Gpu, dtype) -> None:
    make = Inputs(4, dtype)
    cache = make.normal(3, 7, 4, 16, 80)
    host = torch.zeros(3, 5, 4, 16, 80, dtype=dtype, pin_memory=True)
    out = torch.tensor([[6, 0], [2, 4], [3, 1]], dtype=torch.int32, device="cuda")
    copy_blocks(gpu, cache, out, host)
    torch.cuda.synchronize()
    assert torch.equal(host[:, [0, 4, 1]], cache[:, [6, 2, 3]].cpu())
    assert not host[:, [2, 3]].any()
    before, expected = host.clone(), cache.clone()
    back = torch.tensor([[4, 0], [0, 5]], dtype=torch.int32, device="cuda")
    copy_blocks(gpu, host, back, cache)
    expected[:, [0, 5]] = expected[:, [2, 6]]
    assert torch.equal(cache, expected)
    assert torch.equal(host, before)
    with pytest.raises(ValueError, match="destination must be on"):
        copy_blocks(gpu, cache, back, torch.zeros(3, 5, 4, 16, 80, dtype=dtype))
    with pytest.raises(ValueError, match="destination must be"):
        copy_blocks(gpu, cache, back, host[:2])


def test_wrong_tensors_raise(gpu: Gpu) -> None:
    make = Inputs(2)
    cache, copies = make.normal(2, 3, 4, 16, 8), make.integers(0, 1, 2, 2)
    with pytest.raises(ValueError, match="copies must be"):
        copy_blocks(gpu, cache, copies.long())
    with pytest.raises(ValueError, match="multiple of 16 bytes"):
        copy_blocks(gpu, make.normal(2, 3, 1, 1, 6), copies)
    copy_blocks(gpu, cache, copies[:0])
