"""count_tokens: equal to counting one by one."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.count_tokens import count_tokens
from tests.support.kernel_case import Inputs

pytestmark = pytest.mark.gpu
SEEN = 1 << 30


@pytest.mark.parametrize("n", [1, 255, 257, 10_000])
@pytest.mark.parametrize("generated", [False, True])
def test_ids_of_several_rows(gpu: Gpu, n: int, generated: bool) -> None:
    make, max_rows, vocab = Inputs(n), 5, 97
    ids, rows = make.integers(-2, vocab + 2, n), make.integers(-1, max_rows + 1, n)
    counts = torch.zeros(max_rows, vocab, dtype=torch.int32, device="cuda")
    counts[3, 50] = SEEN | 7
    expected = counts.tolist()
    for id, row in zip(ids.tolist(), rows.tolist(), strict=True):
        if 0 <= id < vocab and 0 <= row < max_rows:
            expected[row][id] = (expected[row][id] | SEEN) + int(generated)
    count_tokens(gpu, ids, counts, rows=rows, generated=generated)
    assert counts.tolist() == expected


def test_one_id_a_row(gpu: Gpu) -> None:
    """As after each step: id i is of row i; -1 is none."""
    counts = torch.zeros(8, 50_257, dtype=torch.int32, device="cuda")
    for step in range(3):
        ids = torch.tensor([50_256, -1, 4, step], dtype=torch.int32, device="cuda")
        count_tokens(gpu, ids, counts, generated=True)
    assert counts[0, 50_256] == counts[2, 4] == SEEN + 3
    assert counts[3, :3].tolist() == [SEEN + 1] * 3
    assert counts.count_nonzero() == 5


def test_wrong_tensors_are_refused(gpu: Gpu) -> None:
    counts = torch.zeros(2, 10, dtype=torch.int32, device="cuda")
    ids = torch.zeros(4, dtype=torch.int32, device="cuda")
    with pytest.raises(ValueError, match="ids must be"):
        count_tokens(gpu, ids.long(), counts, generated=True)
    with pytest.raises(ValueError, match="rows must be"):
        count_tokens(gpu, ids, counts, rows=ids[:2], generated=True)
