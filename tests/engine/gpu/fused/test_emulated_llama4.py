"""Llama 4 by the launches of `CudaOps` and `FusedOps`, as in `test_emulated_kernels.py`."""

from pathlib import Path

import pytest
import torch

from swiftchat.engine.gpu.coverage import kernels_cover
from tests.support import llama4
from tests.support.emulated.kernel_bench import KernelBench

MODELS = [(name, heads) for name in llama4.VARIANTS for heads in (False, True)]


@pytest.fixture(params=MODELS, ids=lambda pair: pair[0] + ("-wide" if pair[1] else ""))
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> KernelBench:
    """A model with tiny heads, or with those of the published models."""
    name, is_wide = request.param
    return KernelBench(llama4.make(name, tmp_path, **(llama4.HEADS if is_wide else {})), tmp_path)


@torch.inference_mode()
def test_prompts_and_steps_equal_transformers(bench: KernelBench) -> None:
    assert kernels_cover(bench.config, torch.float32)
    bench.check_prompt_and_steps()
    assert {"route", "expert_down", "grouped_down", "expert_sum"} <= {*bench.launched}


@torch.inference_mode()
def test_fused_steps_equal_transformers(bench: KernelBench) -> None:
    """The shared expert is one of the chosen ones; only layers that do not rotate need `rotary`."""
    bench.check_fused_steps()
    layers, steps = bench.config.num_layers, bench.launched.count("embed")
    num_dense = sum(layer.moe is None for layer in bench.config.layers)
    attentions = list(bench.config.attentions)
    has_norms = any(each.head_norms is not None for each in attentions)
    num_rotary = layers if has_norms else sum(each.rope is None for each in attentions)
    assert bench.launched.count("router") == steps * (layers - num_dense)
    assert bench.launched.count("rotary") == steps * num_rotary
    # q/k/v, output, gate/up and down; experts have neither of the last two. Then the LM head.
    assert bench.launched.count("linear") == steps * (2 * layers + 2 * num_dense + 1)
