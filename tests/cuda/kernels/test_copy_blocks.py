"""copy_blocks and swap_blocks against torch's indexing: equal to the bit, the rest untouched."""

import pytest
import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.copy_blocks import copy_blocks, swap_blocks
from tests.support.kernel_case import DTYPES, Inputs

pytestmark = pytest.mark.gpu


def pairs(make: Inputs, source_blocks: int, destination_blocks: int, m: int) -> Tensor:
    """m copies from any block to m different ones."""
    sources = make.integers(0, source_blocks, m)
    return torch.stack((sources, make.permutation(destination_blocks)[:m]), 1).contiguous()


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


@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_go_to_the_host_and_come_back(gpu: Gpu, dtype) -> None:
    make = Inputs(7, dtype)
    cache = make.normal(3, 6, 4, 16, 64)
    host = make.normal(3, 9, 4, 16, 64).cpu().pin_memory()
    out = pairs(make, 6, 9, 4)
    expected = host.clone()
    expected[:, out[:, 1].long().cpu()] = cache[:, out[:, 0].long()].cpu()
    swap_blocks(gpu, cache, host, out)
    torch.cuda.synchronize()
    assert torch.equal(host, expected)
    back = pairs(make, 9, 6, 3)
    again = cache.clone()
    again[:, back[:, 1].long()] = host[:, back[:, 0].long().cpu()].to(cache.device)
    swap_blocks(gpu, host, cache, back)
    assert torch.equal(cache, again)


def test_a_cache_beyond_two_gib(gpu: Gpu) -> None:
    blocks = 2**31 // (4 * 64 * 128 * 2) + 1
    cache = torch.empty(2, blocks, 4, 64, 128, dtype=torch.bfloat16, device="cuda")
    source = Inputs(1, torch.bfloat16).normal(2, 4, 64, 128)
    cache[:, 0] = source
    copies = torch.tensor([[0, blocks - 1]], dtype=torch.int32, device="cuda")
    copy_blocks(gpu, cache, copies)
    assert torch.equal(cache[:, blocks - 1], source)


def test_wrong_tensors_are_refused(gpu: Gpu) -> None:
    make = Inputs(2)
    cache, copies = make.normal(2, 3, 4, 16, 8), make.integers(0, 1, 2, 2)
    host = make.normal(2, 3, 4, 16, 8).cpu().pin_memory()
    with pytest.raises(ValueError, match="copies must be"):
        copy_blocks(gpu, cache, copies.long())
    with pytest.raises(ValueError, match="multiple of 16 bytes"):
        copy_blocks(gpu, make.normal(2, 3, 1, 1, 6), copies)
    with pytest.raises(ValueError, match="one of source and destination"):
        swap_blocks(gpu, cache, cache, copies)
    with pytest.raises(ValueError, match="in blocks only"):
        swap_blocks(gpu, cache, host[:1], copies)
    with pytest.raises(ValueError, match="pinned"):
        swap_blocks(gpu, cache, make.normal(2, 3, 4, 16, 8).cpu(), copies)
    copy_blocks(gpu, cache, copies[:0])
