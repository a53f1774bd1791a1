"""embed against torch's indexing. Exact without a scale, fp32 rounding with one."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.layers.embedding import embed
from swiftchat.cuda.packed_layout import PACKINGS
from tests.support.kernels.case import DTYPES, Inputs, assert_close, poisoned
from tests.support.kernels.packed_matrices import packed

pytestmark = pytest.mark.gpu
VOCAB = 1009


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "hidden"), [(1, 4096), (3, 5000), (65, 576), (7, 30), (2, 1001)])
def test_embed_equals_indexing(gpu: Gpu, dtype, n: int, hidden: int) -> None:
    make = Inputs(n * hidden, dtype)
    table, ids = make.normal(VOCAB, hidden), make.integers(0, VOCAB, n)
    ids[-1] = VOCAB - 1
    out = poisoned(n, hidden, dtype=torch.float32)
    embed(gpu, ids, table, out)
    assert torch.equal(out, table[ids].float())


@pytest.mark.parametrize("dtype", DTYPES)
def test_ids_of_other_ranks_give_zeros(gpu: Gpu, dtype) -> None:
    table = Inputs(3, dtype).normal(40, 576)
    ids = torch.tensor([99, 100, 139, 140, 0, 2**31 - 1], dtype=torch.int32, device="cuda")
    out = poisoned(6, 576, dtype=torch.float32)
    embed(gpu, ids, table, out, first_id=100)
    assert torch.equal(out[1:3], table[[0, 39]].float())
    assert not out[[0, 3, 4, 5]].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "hidden"), [(1, 768), (9, 2056), (4, 77)])
def test_embed_with_scale(gpu: Gpu, dtype, n: int, hidden: int) -> None:
    make = Inputs(n + hidden, dtype)
    table, ids = make.normal(VOCAB, hidden), make.integers(0, VOCAB, n)
    out = poisoned(n, hidden, dtype=torch.float32)
    embed(gpu, ids, table, out, scale=22.625)
    assert_close(out, table.double()[ids] * 22.625, 1e-6)


@pytest.mark.parametrize(("scheme", "group"), PACKINGS)
@pytest.mark.parametrize(("n", "hidden"), [(1, 4096), (3, 640), (65, 576), (2, 9088)])
def test_embed_with_packed_table(gpu: Gpu, scheme: str, group: int, n: int, hidden: int) -> None:
    """Results are fp32 for every dtype; 9088 columns are more than a block handles at once."""
    hidden = hidden // max(16, group) * max(16, group)
    for dtype in DTYPES:
        make = Inputs(n + hidden, dtype)
        table, meant = packed(make, scheme, group, VOCAB, hidden, uneven=1000)
        ids = make.integers(0, VOCAB, n)
        ids[-1] = VOCAB - 1
        out = poisoned(n, hidden, dtype=torch.float32)
        embed(gpu, ids, table, out)
        expected = meant[ids]
        assert ((out - expected).abs() <= 1e-6 * expected.abs()).all()
        embed(gpu, ids, table, out, scale=22.625)
        assert_close(out, expected * 22.625, 1e-6)


@pytest.mark.parametrize(("scheme", "group"), PACKINGS)
def test_ids_of_other_ranks_in_packed_table(gpu: Gpu, scheme: str, group: int) -> None:
    make = Inputs(4, torch.bfloat16)
    table, meant = packed(make, scheme, group, 40, 640)
    ids = torch.tensor([99, 100, 139, 140, 0, 2**31 - 1], dtype=torch.int32, device="cuda")
    out = poisoned(6, 640, dtype=torch.float32)
    embed(gpu, ids, table, out, first_id=100)
    assert_close(out[1:3], meant[[0, 39]], 1e-6)
    assert not out[[0, 3, 4, 5]].any()


def test_table_of_more_than_2_gib(gpu: Gpu) -> None:
    rows, hidden = 2**19 + 3, 2048  # 2 bytes each: the last rows begin past 2^31 bytes
    table = torch.full((rows, hidden), float("nan"), dtype=torch.bfloat16, device="cuda")
    ids = torch.tensor([rows - 1, 0], dtype=torch.int32, device="cuda")
    table[ids.long()] = Inputs(0, torch.bfloat16).normal(2, hidden)
    out = poisoned(2, hidden, dtype=torch.float32)
    embed(gpu, ids, table, out)
    assert torch.equal(out, table[ids].float())


def test_wrong_tensors_raise(gpu: Gpu) -> None:
    make = Inputs(2)
    ids, table, out = make.integers(0, 8, 4), make.normal(8, 64), make.normal(4, 64)
    with pytest.raises(ValueError, match=r"ids must be torch\.int32"):
        embed(gpu, ids.long(), table, out)
    with pytest.raises(ValueError, match="out must be"):
        embed(gpu, ids, table, make.normal(5, 64))
    embed(gpu, ids[:0], table, out[:0])
