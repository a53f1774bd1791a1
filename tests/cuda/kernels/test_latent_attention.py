"""latent_attention against fp64. Tolerance: attention weights and results are rounded once each."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.attention.latent_attention import Layout, latent_attention
from swiftchat.cuda.signature import KernelSpec
from tests.support.kernels.case import ROUNDING, Inputs, assert_close, poisoned

pytestmark = pytest.mark.gpu
DTYPES = (torch.bfloat16, torch.float16)
MIXED = (1, 2, 63, 64, 65, 0, 200, 128, 1000, 129, 5000)
GARBAGE = 2**31 - 9  # an invalid entry of a block table


@pytest.fixture(scope="module", autouse=True)
def _compiled(gpu: Gpu) -> None:
    """Compile all kernels of this file on all cores."""
    gpu.compile(
        KernelSpec.of("latent_attention", **_layout(gpu, dtype, rank, rope, heads).macros)
        for dtype in DTYPES
        for rank, rope in ((256, 32), (512, 64))
        for heads in (16, 32, 64)
    )


def _layout(gpu: Gpu, dtype: torch.dtype, rank: int, rope: int, heads: int) -> Layout:
    return Layout.of(dtype, rank, rope, heads, gpu.block_shared_bytes > 200 * 1024)


class Case:
    """Random sequences in scattered blocks; NaN in every slot that must not be read."""

    def __init__(
        self,
        dtype: torch.dtype,
        lengths: Sequence[int],
        num_heads: int,
        rank: int = 512,
        rope: int = 64,
        *,
        block_size: int = 64,
        further: int = 0,
    ) -> None:
        make = Inputs(sum(lengths) + num_heads, dtype)
        counts = [-(-length // block_size) for length in lengths]
        blocks = make.permutation(sum(counts) + 3).split([*counts, 3])
        self.cache = poisoned(sum(counts) + 3, 1, block_size, rank + rope + further, dtype=dtype)
        shape = (len(lengths), max(counts) + 2)
        self.tables = torch.full(shape, GARBAGE, dtype=torch.int32, device="cuda")
        self.rows = []
        for i, (length, own) in enumerate(zip(lengths, blocks, strict=False)):
            rows = make.normal(length, rank + rope)
            self.tables[i, : len(own)] = own
            places = torch.arange(length, device="cuda")
            at = own.long()[places // block_size], 0, places % block_size
            self.cache[..., : rank + rope][at] = rows
            self.rows.append(rows.double())
        self.lengths = torch.tensor(lengths, dtype=torch.int32, device="cuda")
        self.q_latent = make.normal(num_heads, len(lengths), rank, scale=0.3)
        # The rotated parts are the last elements of wider heads and rows.
        wide = poisoned(len(lengths), num_heads * (rope + 128) + 64, dtype=dtype)
        heads = wide[:, : num_heads * (rope + 128)].view(len(lengths), num_heads, -1)
        self.q_rope = heads[..., 128:]
        self.q_rope.copy_(make.normal(*self.q_rope.shape))
        self.scale = 0.2

    def run(self, gpu: Gpu) -> Tensor:
        heads, num_seqs, rank = self.q_latent.shape
        out = poisoned(num_seqs, heads, rank, dtype=self.q_latent.dtype)
        latent_attention(
            gpu,
            self.q_latent,
            self.q_rope,
            self.cache,
            block_tables=self.tables,
            context_lens=self.lengths,
            scale=self.scale,
            out=out,
        )
        return out

    def expected(self) -> Tensor:
        found, rank = [], self.q_latent.shape[2]
        for i, rows in enumerate(self.rows):
            q = torch.cat([self.q_latent[:, i], self.q_rope[i]], 1).double()
            weights = (q @ rows.T * self.scale).softmax(-1)
            found.append(weights @ rows[:, :rank] if len(rows) else torch.zeros_like(q[:, :rank]))
        return torch.stack(found)

    def check(self, gpu: Gpu) -> None:
        assert_close(self.run(gpu), self.expected(), ROUNDING[self.q_latent.dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_heads", [1, 5, 16, 20, 32, 40, 64, 128])
@pytest.mark.parametrize(("rank", "rope"), [(512, 64), (256, 32)])
def test_heads_of_mixed_sequences(gpu: Gpu, dtype, num_heads: int, rank: int, rope: int) -> None:
    Case(dtype, MIXED, num_heads, rank, rope).check(gpu)


@pytest.mark.parametrize("length", [1, 64, 65, 129, 2113, 20_001])
@pytest.mark.parametrize("num_heads", [16, 128])
def test_one_sequence(gpu: Gpu, length: int, num_heads: int) -> None:
    Case(torch.bfloat16, [length], num_heads).check(gpu)


@pytest.mark.parametrize("block_size", [4, 16, 256])
def test_block_sizes_and_wider_rows(gpu: Gpu, block_size: int) -> None:
    Case(torch.bfloat16, MIXED, 16, block_size=block_size, further=128).check(gpu)


def test_many_sequences(gpu: Gpu) -> None:
    Case(torch.bfloat16, [(37 * i * i) % 700 for i in range(150)], 16).check(gpu)


def test_large_scores(gpu: Gpu) -> None:
    case = Case(torch.bfloat16, MIXED, 16)
    case.q_latent *= 200  # one token takes all the weight
    case.check(gpu)


def test_graph_replays_read_the_current_lengths(gpu: Gpu) -> None:
    case = Case(torch.bfloat16, (3000, 200, 0, 1), 16)
    case.run(gpu)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = case.run(gpu)
    graph.replay()
    assert_close(out, case.expected(), ROUNDING[torch.bfloat16])
    shorter = [1, 199, 0, 0]
    case.lengths.copy_(torch.tensor(shorter))
    case.rows = [rows[:n] for rows, n in zip(case.rows, shorter, strict=True)]
    graph.replay()
    assert_close(out, case.expected(), ROUNDING[torch.bfloat16])


def test_wrong_arguments_raise(gpu: Gpu) -> None:
    case = Case(torch.bfloat16, (5, 9), 16)
    for match, name, wrong in (
        ("q_latent must be", "q_latent", case.q_latent[:8]),
        ("q_rope must be", "q_rope", case.q_rope[:1]),
        ("does not take 512", "q_rope", case.q_rope[..., :48]),
        ("context_lens must be", "lengths", case.lengths.long()),
        ("does not have such rows", "cache", case.cache[:, :, :12]),
    ):
        good = getattr(case, name)
        setattr(case, name, wrong)
        with pytest.raises(ValueError, match=match):
            latent_attention(
                gpu,
                case.q_latent,
                case.q_rope,
                case.cache,
                block_tables=case.tables,
                context_lens=case.lengths,
                scale=1.0,
                out=poisoned(2, 16, 512, dtype=torch.bfloat16),
            )
        setattr(case, name, good)
