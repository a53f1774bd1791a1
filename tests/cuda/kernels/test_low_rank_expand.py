"""low_rank_expand after low_rank_shrink, against fp64."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.linear.linear import Norm
from swiftchat.cuda.ops.linear.low_rank import Part, low_rank_expand, low_rank_shrink, table_entry
from tests.support.kernels.case import DTYPES, ROUNDING, Inputs, assert_close, poisoned

pytestmark = pytest.mark.gpu
MAX_PARTS, EPS = 3, 1e-5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize(("n", "k", "m"), [(1, 4096, 700), (7, 520, 300), (16, 14336, 1040)])
def test_rows_have_the_changes_of_their_set(
    gpu: Gpu, dtype: torch.dtype, has_norm: bool, n: int, k: int, m: int
) -> None:
    make = Inputs(n + k, dtype)
    x = make.normal(n, k, dtype=torch.float32 if has_norm else dtype)
    weight, bias = make.normal(k), make.normal(m)
    # Two sets; the second has two parts that overlap, as of two adapters, and a gap.
    spans = [[(0, m // 2, 16), (m // 2, m - m // 2, 8)], [(5, 100, 32), (50, 70, 8)]]
    tensors, rows = [], []
    for parts in spans:
        a = make.normal(sum(rank for _, _, rank in parts), k, scale=k**-0.5)
        made = [Part(first, make.normal(size, rank)) for first, size, rank in parts]
        tensors.append((a, made))
        rows.append(table_entry(a, made, MAX_PARTS))
    rows.append(table_entry(None, (), MAX_PARTS))
    table = torch.tensor(rows, device=gpu.device)
    numbers = [(i + 1) % 4 - 1 for i in range(n)]  # 0, 1, the empty set, none, 0 ...
    sets = torch.tensor(numbers, dtype=torch.int32, device=gpu.device)
    narrow = poisoned(n, 48, dtype=torch.float32)
    norm = Norm(weight, EPS, 1.0) if has_norm else None
    low_rank_shrink(gpu, x, table, sets, narrow, norm=norm)
    out = poisoned(n, m, dtype=dtype)
    low_rank_expand(gpu, table, sets, bias, narrow, out)
    expected = bias.double().repeat(n, 1)
    inputs = x.double()
    if has_norm:
        inputs *= (inputs.square().mean(-1, keepdim=True) + EPS).rsqrt() * (weight.double() + 1)
    for i, number in enumerate(numbers):
        if number not in (0, 1):
            continue
        a, made = tensors[number]
        found, start = a.double() @ inputs[i], 0
        for part in made:
            end = start + part.b.shape[1]
            expected[i, part.first : part.first + len(part.b)] += part.b.double() @ found[start:end]
            start = end
    assert_close(out, expected, max(ROUNDING[dtype], 1e-5))


def test_sizes_are_checked(gpu: Gpu) -> None:
    make = Inputs(0, torch.bfloat16)
    table = torch.zeros(1, 18, dtype=torch.int64, device=gpu.device)
    sets = torch.zeros(1, dtype=torch.int32, device=gpu.device)
    narrow = torch.zeros(1, 8, device=gpu.device)
    with pytest.raises(ValueError, match="multiples of 8"):
        low_rank_shrink(gpu, make.normal(1, 12), table, sets, narrow)
    with pytest.raises(ValueError, match="bias"):
        low_rank_expand(gpu, table, sets, make.normal(5), narrow, make.normal(1, 6))
