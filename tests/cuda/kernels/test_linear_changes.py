"""linear with the low-rank changes of each row's set of adapters, against fp64.

Tolerances as in test_linear.py. Launches take turns to use two buffers, and each makes the other
one ready, so every case launches several times.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.linear import linear as op
from swiftchat.cuda.ops.linear.layout import linear_fits
from swiftchat.cuda.ops.linear.linear import Norm, RopeCache, Workspace
from swiftchat.cuda.ops.linear.low_rank import Part, table_entry
from swiftchat.cuda.ops.linear.row_changes import RowChanges, narrow_buffer
from swiftchat.cuda.packed_layout import PACKINGS
from tests.support.kernels.case import DTYPES, ROUNDING, Inputs, assert_close, poisoned
from tests.support.kernels.packed_matrices import packed

pytestmark = pytest.mark.gpu
MAX_PARTS, EPS, REPEATS = 3, 1e-5, 4


@pytest.fixture(scope="module")
def workspace(gpu: Gpu) -> Iterator[Workspace]:
    shared = Workspace(gpu, 4096)
    yield shared
    assert not shared.counters.any()


def tolerance(dtype: torch.dtype, normed: bool = False) -> float:
    return ROUNDING[dtype] * (2 if normed else 1) if dtype != torch.float32 else 1e-5


class Sets:
    """Two sets of matrices for m results of k columns, an empty set, and rows without one.

    The second set has parts that overlap, as of two adapters, and a gap.
    """

    def __init__(self, make: Inputs, gpu: Gpu, n: int, m: int, k: int) -> None:
        half, third = m // 2, m // 3
        spans = [[(0, half, 16), (half, m - half, 8)], [(5, third, 8), (half, m // 4, 16)]]
        self._found: list[tuple[Tensor, list[Part]]] = []
        for parts in spans:
            a = make.normal(sum(rank for _, _, rank in parts), k, scale=k**-0.5)
            made = [Part(first, make.normal(size, rank)) for first, size, rank in parts]
            self._found.append((a, made))
        rows = [table_entry(a, made, MAX_PARTS) for a, made in self._found]
        rows.append(table_entry(None, (), MAX_PARTS))
        self._numbers = [(i + 1) % 4 - 1 for i in range(n)]  # 0, 1, the empty set, none, 0 …
        table = torch.tensor(rows, device=gpu.device)
        sets = torch.tensor(self._numbers, dtype=torch.int32, device=gpu.device)
        buffers = narrow_buffer(gpu), narrow_buffer(gpu)
        self.turns = [RowChanges(table, sets, *pair, 24) for pair in (buffers, buffers[::-1])]
        self._m = m

    def of(self, x: Tensor) -> Tensor:
        """Return the changes for x, fp64 [n, m]."""
        out = torch.zeros(len(x), self._m, dtype=torch.float64, device=x.device)
        for i, number in enumerate(self._numbers):
            if number not in (0, 1):
                continue
            a, made = self._found[number]
            narrow, start = a.double() @ x[i].double(), 0
            for part in made:
                end = start + part.b.shape[1]
                out[i, part.first : part.first + len(part.b)] += part.b.double() @ narrow[start:end]
                start = end
        return out


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    x = x.double()
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight.double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "k"), [(4096, 4096), (700, 520), (1040, 14336)])
@pytest.mark.parametrize("n", [1, 5, 16])
def test_residual(gpu: Gpu, dtype: torch.dtype, m: int, k: int, n: int) -> None:
    """Also with splits, where one block of a tile adds the changes; all launches give the same."""
    make = Inputs(m + k + n, dtype)
    x, weight, bias = make.normal(n, k), make.normal(m, k), make.normal(m)
    workspace, sets = Workspace(gpu, m), Sets(make, gpu, n, m, k)
    expected = x.double() @ weight.double().T + bias.double() + sets.of(x)
    found = []
    for turn in range(REPEATS):
        stream = torch.zeros(n, m, device=gpu.device)
        op.linear_residual(
            gpu,
            op.LinearInput(x, bias=bias, changes=sets.turns[turn % 2]),
            weight,
            stream,
            workspace,
        )
        found.append(stream)
    for stream in found:
        assert_close(stream, expected, 1e-5)
        assert torch.equal(stream, found[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 8, 11])
def test_after_a_norm(gpu: Gpu, workspace: Workspace, dtype: torch.dtype, n: int) -> None:
    make = Inputs(n, dtype)
    m, k = 520, 2048
    x, weight, scale = make.normal(n, k, dtype=torch.float32), make.normal(m, k), make.normal(k)
    sets = Sets(make, gpu, n, m, k)
    if not linear_fits(gpu, n, weight, has_changes=True):
        pytest.skip("too large")
    normed = rms_norm(x, scale.double() + 1)
    for turn in range(REPEATS):
        out = poisoned(n, m, dtype=torch.float32)
        norm = Norm(scale, EPS, weight_offset=1.0)
        op.linear(
            gpu, op.LinearInput(x, norm=norm, changes=sets.turns[turn % 2]), weight, out, workspace
        )
        expected = normed @ weight.double().T + sets.of(normed)
        assert_close(out, expected, tolerance(dtype, normed=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 6, 12])
def test_gate_and_up(gpu: Gpu, workspace: Workspace, dtype: torch.dtype, n: int) -> None:
    make = Inputs(n, dtype)
    inner, k = 1536, 576
    x, scale = make.normal(n, k, dtype=torch.float32), make.normal(k)
    weight, sets = make.normal(2 * inner, k, scale=k**-0.5), Sets(make, gpu, n, 2 * inner, k)
    normed = rms_norm(x, scale)
    gate, up = (normed @ weight.double().T + sets.of(normed)).chunk(2, -1)
    for turn in range(REPEATS):
        out = poisoned(n, inner, dtype=dtype)
        op.linear_act_and_mul(
            gpu,
            op.LinearInput(x, norm=Norm(scale, EPS), changes=sets.turns[turn % 2]),
            weight,
            out,
            workspace,
            activation="silu",
        )
        assert_close(out, torch.nn.functional.silu(gate) * up, tolerance(dtype, normed=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(6, 2, 8), (9, 3, 64)])
@pytest.mark.parametrize("n", [1, 6, 13])
def test_queries_keys_and_values(
    gpu: Gpu,
    workspace: Workspace,
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    head_dim: int,
    n: int,
) -> None:
    make = Inputs(heads + n, dtype)
    k, num_blocks, block_size = 576, 50, 16
    rows = (heads + 2 * kv_heads) * head_dim
    x, scale = make.normal(n, k, dtype=torch.float32), make.normal(k)
    weight, sets = make.normal(rows, k, scale=k**-0.5), Sets(make, gpu, n, rows, k)
    positions = make.integers(0, 1000, n)
    angles = torch.rand(1000, head_dim // 2, device="cuda", dtype=torch.float64) * 7
    cos_sin = torch.cat([angles.cos(), angles.sin()], -1).float()
    slots = make.permutation(num_blocks * block_size)[:n].contiguous()
    normed = rms_norm(x, scale)
    qkv = (normed @ weight.double().T + sets.of(normed)).view(n, -1, head_dim)
    cos, sin = angles[positions].cos().unsqueeze(1), angles[positions].sin().unsqueeze(1)
    low, high = qkv[:, : heads + kv_heads].chunk(2, -1)
    rotated = torch.cat([low * cos - high * sin, high * cos + low * sin], -1)
    for turn in range(REPEATS):
        cache = poisoned(num_blocks, 2 * kv_heads, block_size, head_dim, dtype=dtype)
        queries = poisoned(n, heads, head_dim, dtype=dtype)
        rope = RopeCache(cos_sin, positions, slots, cache, heads)
        op.linear_rope_cache(
            gpu,
            op.LinearInput(x, norm=Norm(scale, EPS), changes=sets.turns[turn % 2]),
            weight,
            queries,
            workspace,
            rope=rope,
        )
        assert_close(queries, rotated[:, :heads], tolerance(dtype, normed=True))
        stored = cache[slots // block_size, :, slots % block_size]
        expected = torch.cat([rotated[:, heads:], qkv[:, heads + kv_heads :]], 1)
        assert_close(stored, expected, tolerance(dtype, normed=True))


@dataclass(frozen=True)
class Case:
    dtype: torch.dtype
    n: int


@pytest.mark.parametrize(("scheme", "group"), PACKINGS)
@pytest.mark.parametrize("case", [Case(torch.bfloat16, 1), Case(torch.float16, 8)], ids=str)
def test_packed_weights(
    gpu: Gpu, workspace: Workspace, scheme: str, group: int, case: Case
) -> None:
    make, n = Inputs(case.n, case.dtype), case.n
    m, k = 1536, 4096
    matrix, weight = packed(make, scheme, group, m, k)
    x, sets = make.normal(n, k), Sets(make, gpu, n, m, k)
    expected = x.double() @ weight.T + sets.of(x)
    for turn in range(REPEATS):
        stream = torch.zeros(n, m, device=gpu.device)
        op.linear_residual(
            gpu, op.LinearInput(x, changes=sets.turns[turn % 2]), matrix, stream, workspace
        )
        assert_close(stream, expected, 2.0**-12)


def test_sizes_are_checked(gpu: Gpu, workspace: Workspace) -> None:
    make = Inputs(0, torch.bfloat16)
    x, weight = make.normal(1, 512), make.normal(64, 512)
    (changes, _) = Sets(make, gpu, 1, 64, 512).turns
    wide = RowChanges(changes.table, changes.sets, changes.narrow, changes.next_narrow, 776)
    out = torch.zeros(1, 64, device=gpu.device)
    with pytest.raises(ValueError, match="by rank 776"):
        op.linear_residual(gpu, op.LinearInput(x, changes=wide), weight, out, workspace)
