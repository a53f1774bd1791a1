"""decode_attention with a rotation of its own gives the bits of `rotary` and decode_attention."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.attention.decode_attention import (
    decode_attention,
    decode_attention_workspace,
)
from swiftchat.cuda.ops.attention.decode_rotary import DecodeRotary
from swiftchat.cuda.ops.attention.rotary import HeadNorm, rotary
from tests.support.kernels.case import DTYPES, Inputs, poisoned

pytestmark = pytest.mark.gpu
BLOCK_SIZE = 16
LENGTHS = (1, 2, 16, 17, 0, 63, 64, 65, 200, 1000, 5000)
# Query heads, heads of keys, gates, elements of a head, rotated ones, whether heads are normalized.
HEADS = [
    (8, 2, 0, 64, 64, True),
    (32, 4, 0, 128, 128, True),
    (16, 16, 0, 128, 128, False),
    (32, 2, 0, 128, 64, True),
    (24, 2, 24, 128, 0, True),
    (16, 2, 16, 256, 64, True),
    (4, 1, 0, 256, 256, True),
]


Sizes = tuple[int, int, int, int, int, bool]


@dataclass
class Case:
    """Sequences in scattered blocks, whose newest keys and values are not in the cache."""

    qkv: Tensor
    cache: Tensor
    tables: Tensor
    lengths: Tensor
    slots: Tensor
    cos_sin: Tensor | None
    norm: HeadNorm | None
    heads: tuple[int, int, int]

    @classmethod
    def random(cls, dtype: torch.dtype, sizes: Sizes, lengths: tuple[int, ...]) -> "Case":
        (num_heads, kv_heads, gates, dim, rotary_dim, is_normed), n = sizes, len(lengths)
        make = Inputs(num_heads + dim + n, dtype)
        used = [-(-length // BLOCK_SIZE) for length in lengths]
        order = make.permutation(sum(used) + 3)
        cache = make.normal(len(order), 2 * kv_heads, BLOCK_SIZE, dim)
        tables = torch.full((n, max(used)), 2**31 - 9, dtype=torch.int32, device="cuda")
        slots = torch.full((n,), -1, dtype=torch.int32, device="cuda")
        first = 0
        for i, (length, count) in enumerate(zip(lengths, used, strict=True)):
            tables[i, :count] = order[first : first + count]
            if length:
                slots[i] = tables[i, count - 1] * BLOCK_SIZE + (length - 1) % BLOCK_SIZE
                block, place = order[first + count - 1], (length - 1) % BLOCK_SIZE
                cache[block, :, place:] = float("nan")  # the newest and what comes after it
            first += count
        angles = make.normal(max(lengths) + 1, rotary_dim, dtype=torch.float32)
        norm = HeadNorm(make.normal(dim), make.normal(dim), 1e-6, weight_offset=0.5)
        return cls(
            make.normal(n, num_heads + gates + 2 * kv_heads, dim),
            cache,
            tables,
            torch.tensor(lengths, dtype=torch.int32, device="cuda"),
            slots,
            angles if rotary_dim else None,
            norm if is_normed else None,
            (num_heads, kv_heads, gates),
        )

    def run(self, gpu: Gpu, *, apart: bool, window: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Return the output, the cache and qkv, as one kernel or two `apart` leave them."""
        num_heads, kv_heads, gates = self.heads
        qkv, cache = self.qkv.clone(), self.cache.clone()
        positions = (self.lengths - 1).clamp(min=0)
        own = DecodeRotary(self.cos_sin, positions, self.slots, self.norm, gates)
        if apart:
            rotary(
                gpu,
                qkv,
                cache,
                cos_sin=self.cos_sin,
                positions=positions,
                slot_mapping=self.slots,
                num_heads=num_heads,
                num_kv_heads=kv_heads,
                norm=self.norm,
                num_gate_heads=gates,
            )
        q = qkv[:, :num_heads]
        out = poisoned(*q.shape, dtype=q.dtype)
        decode_attention(
            gpu,
            q,
            cache,
            block_tables=self.tables,
            context_lens=self.lengths,
            scale=q.shape[2] ** -0.5,
            out=out,
            workspace=decode_attention_workspace(gpu, *q.shape),
            window=window,
            new_tokens=1,
            rotary=None if apart else own,
        )
        return out, cache, qkv


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", HEADS)
@pytest.mark.parametrize("lengths", [LENGTHS, (1025,), (40_000,), (700, 700)])
def test_one_kernel_equals_two(
    gpu: Gpu,
    dtype: torch.dtype,
    sizes: Sizes,
    lengths: tuple[int, ...],
) -> None:
    case = Case.random(dtype, sizes, lengths)
    out, cache, qkv = case.run(gpu, apart=False)
    expected, written, _ = case.run(gpu, apart=True)
    assert torch.isfinite(out).all()
    assert torch.equal(out, expected)
    assert torch.equal(cache.nan_to_num(7.0), written.nan_to_num(7.0))
    assert torch.equal(qkv, case.qkv)


@pytest.mark.parametrize("window", [1, 30, 512])
def test_windows(gpu: Gpu, window: int) -> None:
    case = Case.random(torch.bfloat16, HEADS[1], LENGTHS)
    results = [case.run(gpu, apart=apart, window=window) for apart in (False, True)]
    assert torch.equal(results[0][0], results[1][0])


def test_a_row_without_a_slot_is_not_stored(gpu: Gpu) -> None:
    case = Case.random(torch.bfloat16, HEADS[1], (40, 50))
    case.slots[1] = -1
    _, cache, _ = case.run(gpu, apart=False)
    block = case.tables[1, 3]
    assert cache[block, :, 1].isnan().all() and cache[case.tables[0, 2], :, 7].isfinite().all()


def test_unsupported_arguments_raise(gpu: Gpu) -> None:
    case = Case.random(torch.bfloat16, (8, 2, 0, 64, 24, True), (5,))
    with pytest.raises(ValueError, match="rotary_dim 24"):
        case.run(gpu, apart=False)
