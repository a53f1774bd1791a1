"""Steps whose matmuls compute changes by adapters, where one of the matmuls cannot."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from swiftchat.cuda.ops.linear.row_changes import SENTINEL
from swiftchat.engine.gpu.fused.deltas import FusedDeltas, needed_ranks
from swiftchat.engine.gpu.fused.step_decoder import StepDecoder
from swiftchat.engine.gpu.linear.factory import KernelWeights
from swiftchat.engine.gpu.linear.plain import LinearKernels
from swiftchat.engine.linear.adapted import AdapterSet, Delta, LowRankPart
from swiftchat.engine.linear.merged import MergedWeight
from tests.support.emulated.kernel_bench import KernelBench
from tests.support.reference import make_reference


@pytest.fixture
def bench(tmp_path: Path) -> KernelBench:
    """Gate and up of the first layer are two matrices, so an odd number of others is left."""
    made = KernelBench(make_reference("llama", tmp_path), tmp_path)
    factory = KernelWeights(LinearKernels(made.gpu, made.config.hidden_size))
    first, *others = made.weights.layers
    (matrix,) = first.gate_up.tensors
    merged = MergedWeight([factory.plain(part.clone()) for part in matrix.chunk(2)])
    layers = [replace(first, gate_up=merged), *others]
    made.decoder.weights = replace(made.weights, layers=layers)
    return made


def adapters(bench: KernelBench) -> AdapterSet:
    torch.manual_seed(7)
    deltas = {}
    for i, layer in enumerate(bench.decoder.weights.layers):
        for name in ("qkv", "o", "gate_up", "down"):
            rows, columns = getattr(layer, name).shape
            part = LowRankPart(0, torch.randn(5, columns) / 8, torch.randn(rows, 5) / 8)
            deltas[name, i] = Delta([part])
    return AdapterSet(deltas)


def next_buffer(deltas: FusedDeltas, bench: KernelBench) -> Tensor:
    """Return the buffer that the next matmul uses."""
    matrices = bench.decoder.weights.layers[0].o.kernel_matrices
    changes = deltas.changes(("o", 0), 1, matrices, splittable=True, pair_span=16)
    assert changes is not None
    return changes.narrow


@torch.inference_mode()
def test_each_step_leaves_the_buffer_that_it_begins_with_ready(bench: KernelBench) -> None:
    """So it can be replayed. Results are those of kernels of their own."""
    made = adapters(bench)
    ranks = needed_ranks(made)
    assert ranks is not None
    found: dict[bool, Tensor] = {}
    for in_linear in (True, False):
        sets = torch.tensor([0, -1, 0, 0], dtype=torch.int32)
        deltas = FusedDeltas(bench.gpu, bench.decoder.weights, 2, sets, ranks)
        deltas.in_linear = in_linear
        deltas.put(0, made)
        first = next_buffer(deltas, bench) if in_linear else None
        deltas.reset()
        decoder = StepDecoder(bench.decoder, bench.ops, bench.residual(), deltas=deltas)
        found[in_linear] = torch.empty(2, bench.vocab_size)
        bench.forward(0, 18)
        bench.launched.clear()
        for position in (18, 19):
            plan = bench.plan([position, position - 9])
            decoder.launch(plan, bench.cache, found[in_linear])
        if first is not None:
            assert next_buffer(deltas, bench) is first
            assert (first.view(torch.int32) == SENTINEL).all()
        # The two matrices share a bias of each row in each of two steps.
        num_separate = 2 * (1 if in_linear else len(made.deltas))
        assert bench.launched.count("low_rank_expand") == num_separate
    assert torch.allclose(found[True], found[False], atol=1e-4 * float(found[True].abs().max()))
    bench.check(found[True][1], 10)  # a row without adapters
