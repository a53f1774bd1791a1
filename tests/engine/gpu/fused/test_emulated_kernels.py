"""Gemma 4 by the launches of `CudaOps` and `FusedOps`, whose kernels torch emulates on the CPU.

Against transformers in fp32, relative to the largest logit. The kernels themselves have tests of
their own on a GPU.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from swiftchat.engine.gpu.coverage import kernels_cover
from swiftchat.engine.gpu.linear.factory import KernelWeights
from swiftchat.engine.gpu.linear.plain import LinearKernels
from swiftchat.engine.linear.merged import MergedWeight
from swiftchat.engine.model.per_layer import PerLayerTable
from swiftchat.engine.reference.per_layer import per_layer_embeddings
from tests.support import gemma4
from tests.support.emulated.kernel_bench import NUM_TOKENS, KernelBench

MODELS = [(name, heads) for name in gemma4.VARIANTS for heads in (False, True)]


@pytest.fixture(params=MODELS, ids=lambda pair: pair[0] + ("-wide" if pair[1] else ""))
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> KernelBench:
    """A model with tiny heads, or with those of the published models."""
    name, is_wide = request.param
    return KernelBench(gemma4.make(name, tmp_path, **(gemma4.HEADS if is_wide else {})), tmp_path)


@torch.inference_mode()
def test_prompts_and_steps_equal_transformers(bench: KernelBench) -> None:
    assert kernels_cover(bench.config, torch.float32)
    bench.check_prompt_and_steps()
    launched = bench.launched
    assert ("expert_down" in launched) == ("grouped_down" in launched)
    assert ("route" in launched) == (bench.config.moe is not None)


@torch.inference_mode()
def test_fused_steps_equal_transformers(bench: KernelBench) -> None:
    bench.check_fused_steps()
    launched = bench.launched
    assert "norm" not in launched or bench.config.embeddings.per_layer is not None
    assert ("router" in launched) == (bench.config.moe is not None)


@torch.inference_mode()
def test_ids_without_an_embedding_for_the_layers_have_that_of_id_0(tmp_path: Path) -> None:
    bench = KernelBench(gemma4.make("all", tmp_path), tmp_path)
    whole = bench.weights.per_layer
    rows = whole.embed.tensor[:50].clone()
    embed = KernelWeights(LinearKernels(bench.gpu, 48)).plain(rows)
    table = PerLayerTable(embed, whole.project, whole.norm)
    ids, x = torch.tensor([3, 49, 50, 96], dtype=torch.int32), torch.randn(4, 48)
    found = bench.ops.per_layer.embeddings(ids, x, table)
    expected = per_layer_embeddings(ids, x, table, bench.config.norm.eps)
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@torch.inference_mode()
def test_gate_and_up_in_two_formats_are_two_matmuls(tmp_path: Path) -> None:
    bench = KernelBench(gemma4.make("large", tmp_path), tmp_path)
    factory = KernelWeights(LinearKernels(bench.gpu, bench.config.hidden_size))
    layers = []
    for layer in bench.weights.layers:
        rows = [part.clone() for part in layer.gate_up.tensor.chunk(2)]
        merged = MergedWeight([factory.plain(part) for part in rows])
        layers.append(replace(layer, gate_up=merged))
    bench.decoder.weights = replace(bench.weights, layers=layers)
    bench.check_fused_steps()
    num_steps = NUM_TOKENS - 18
    assert bench.launched.count("act_and_mul") == num_steps * bench.config.num_layers
