"""argmax: equal to the maximum and the lowest id that has it."""

import pytest
import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.sampling.sampling import argmax, argmax_workspace
from tests.support.kernels.case import Inputs, poisoned

pytestmark = pytest.mark.gpu
VOCABS = [1, 97, 2048, 2049, 50_257, 128_256, 262_144]


def run(gpu: Gpu, logits: Tensor) -> tuple[Tensor, Tensor]:
    n = len(logits)
    workspace = argmax_workspace(gpu, n + 1)
    values, ids = poisoned(n, dtype=torch.float32), poisoned(n, dtype=torch.int32)
    argmax(gpu, logits, values, ids, workspace)
    assert not workspace.any()
    return values, ids


def reference(logits: Tensor) -> tuple[Tensor, Tensor]:
    values = logits.max(1).values
    places = torch.arange(logits.shape[1], device=logits.device).expand_as(logits)
    return values, places.where(logits == values[:, None], logits.shape[1]).min(1).values.int()


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("n", [1, 5])
def test_argmax(gpu: Gpu, n: int, vocab: int) -> None:
    make = Inputs(vocab)
    for shift in (0.0, -1e4, 3e38):  # also negative rows, and the largest of numbers
        logits = make.normal(n, vocab) + shift
        values, ids = run(gpu, logits)
        expected_values, expected_ids = reference(logits)
        assert torch.equal(values, expected_values) and torch.equal(ids, expected_ids)


@pytest.mark.parametrize("vocab", [97, 128_256])
def test_ties_give_the_lowest_id(gpu: Gpu, vocab: int) -> None:
    logits = Inputs(1).integers(-3, 4, 6, vocab).float()
    logits[1] = -7.5
    logits[2] = logits[2].clamp(max=0)
    logits[2][logits[2] == 0] = -0.0  # -0 is no less than 0
    logits[2, vocab // 2] = 0.0
    values, ids = run(gpu, logits)
    expected_values, expected_ids = reference(logits)
    assert torch.equal(values, expected_values) and torch.equal(ids, expected_ids)
    assert ids[1] == 0


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("vocab", [97, 50_257])
def test_rows_with_nan_or_infinity(gpu: Gpu, vocab: int, bad: float) -> None:
    logits = Inputs(2).normal(7, vocab)
    expected_values, expected_ids = reference(logits)
    logits[1, 0] = logits[3, vocab - 1] = logits[5, vocab // 2] = bad
    logits[6] = bad
    values, ids = run(gpu, logits)
    good, rest = [0, 2, 4], [1, 3, 5, 6]
    assert torch.equal(ids[good], expected_ids[good])
    assert torch.equal(values[good], expected_values[good])
    assert (ids[rest] == -1).all() and values[rest].isnan().all()


def test_a_row_whose_ids_are_all_banned(gpu: Gpu) -> None:
    """`penalties` makes their logits -1e30."""
    logits = torch.full((3, 5000), -1e30, device="cuda")
    logits[1, 4321] = -1e29
    assert run(gpu, logits)[1].tolist() == [-2, 4321, -2]


def test_graph_replay(gpu: Gpu) -> None:
    make, n, vocab = Inputs(3), 4, 50_257
    logits, workspace = make.normal(n, vocab), argmax_workspace(gpu, n)
    values, ids = poisoned(n, dtype=torch.float32), poisoned(n, dtype=torch.int32)
    argmax(gpu, logits, values, ids, workspace)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        argmax(gpu, logits, values, ids, workspace)
    for _ in range(10):
        logits.copy_(make.normal(n, vocab))
        graph.replay()
        assert torch.equal(ids, reference(logits)[1])


def test_wrong_tensors_raise(gpu: Gpu) -> None:
    logits, values = torch.zeros(3, 10, device="cuda"), poisoned(3, dtype=torch.float32)
    ids, workspace = poisoned(3, dtype=torch.int32), argmax_workspace(gpu, 2)
    with pytest.raises(ValueError, match="workspace for 2"):
        argmax(gpu, logits, values, ids, workspace)
    with pytest.raises(ValueError, match="ids must be"):
        argmax(gpu, logits, values, values, argmax_workspace(gpu, 3))
