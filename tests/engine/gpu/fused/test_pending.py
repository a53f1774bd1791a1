"""Pending values: what absorbs them, and when they are computed."""

import pytest
import torch
from torch import Tensor

from swiftchat.engine.gpu.fused.ops import FusedOps
from swiftchat.engine.gpu.fused.pending import Pending, computed
from tests.support.emulated.kernel_bench import KernelBench
from tests.support.reference import make_reference


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> KernelBench:
    folder = tmp_path_factory.mktemp("llama")
    made = KernelBench(make_reference("llama", folder), folder)
    with torch.inference_mode():
        made.launched.clear()
    return made


@pytest.fixture
def ops(bench: KernelBench) -> FusedOps:
    bench.launched.clear()
    return FusedOps(bench.ops, torch.zeros(4, bench.config.hidden_size))


@pytest.fixture
def x(ops: FusedOps) -> Tensor:
    rows = ops.stream(2)
    computed(rows).normal_(generator=torch.Generator().manual_seed(3))
    return rows


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


@torch.inference_mode()
def test_a_norm_that_is_still_wanted_precedes_the_change_of_its_stream(
    bench: KernelBench, ops: FusedOps, x: Tensor
) -> None:
    layer, eps = bench.weights.layers[0], bench.config.norm.eps
    assert layer.attn_norm is not None
    expected = rms(computed(x).clone(), layer.attn_norm, eps)
    normed = ops.norm_(x, None, layer.attn_norm, None)
    assert isinstance(normed, Pending) and bench.launched == []
    ops.scale_(x, 2.0)
    assert bench.launched == ["norm"]
    assert torch.allclose(normed + 0, expected, atol=1e-5)


@torch.inference_mode()
def test_a_norm_that_nobody_wants_is_not_computed(
    bench: KernelBench, ops: FusedOps, x: Tensor
) -> None:
    weight = bench.weights.layers[0].attn_norm
    assert weight is not None
    normed = ops.norm_(x, None, weight, None)
    del normed
    ops.scale_(x, 2.0)
    assert bench.launched == []


@torch.inference_mode()
def test_a_matmul_keeps_the_norm_that_it_reads(
    bench: KernelBench, ops: FusedOps, x: Tensor
) -> None:
    layer = bench.weights.layers[0]
    assert layer.attn_norm is not None
    (matrix,) = layer.qkv.tensors
    expected = rms(computed(x).clone(), layer.attn_norm, bench.config.norm.eps) @ matrix.t()
    product = ops.linear(ops.norm_(x, None, layer.attn_norm, None), layer.qkv, None)
    ops.replace_(x, torch.ones(2, bench.config.hidden_size), 3.0)
    assert bench.launched == ["norm"] and (computed(x) == 3).all()
    assert torch.allclose(product * 1, expected, atol=1e-4)
    assert bench.launched == ["norm", "linear"]


@torch.inference_mode()
def test_an_operator_of_torch_computes_a_value_once(
    bench: KernelBench, ops: FusedOps, x: Tensor
) -> None:
    layer = bench.weights.layers[0]
    product = ops.linear(computed(x), layer.qkv, None)
    (matrix,) = layer.qkv.tensors
    assert product.shape == (2, len(matrix)) and len(product) == 2
    product.mul_(2)
    assert torch.allclose(torch.cat([product]), 2 * computed(x) @ matrix.t(), atol=1e-4)
    assert bench.launched == ["linear"]


@torch.inference_mode()
def test_a_changed_result_of_a_matmul_is_added_as_it_is(
    bench: KernelBench, ops: FusedOps, x: Tensor
) -> None:
    """A scale of a branch is computed between the matmul and the stream."""
    layer, before = bench.weights.layers[0], computed(x).clone()
    (matrix,) = layer.o.tensors
    inner = torch.randn(2, matrix.shape[1])
    out = ops.linear(inner, layer.o, None)
    ops.scale_(out, 0.5)
    ops.add_(x, out)
    assert torch.allclose(computed(x), before + 0.5 * inner @ matrix.t(), atol=1e-4)
