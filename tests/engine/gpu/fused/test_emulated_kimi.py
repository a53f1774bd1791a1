"""Kimi Linear by the launches of `CudaOps` and `FusedOps`, as in `test_emulated_kernels.py`."""

from pathlib import Path

import pytest
import torch

from swiftchat.cuda.ops.attention import latent_attention
from swiftchat.engine.gpu.coverage import kernels_cover
from swiftchat.weights.model.directory import Model
from tests.support import kimi
from tests.support.emulated.kernel_bench import KernelBench


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KernelBench:
    # The emulated kernels compute in fp32, where there is no kernel of latent attention.
    monkeypatch.setattr(latent_attention, "_DTYPES", (torch.float32,))
    return KernelBench(kimi.make(tmp_path), tmp_path)


@torch.inference_mode()
def test_prompts_and_steps_equal_transformers(bench: KernelBench) -> None:
    """Prompts by torch's latent attention and the scans, single tokens by kernels alone."""
    bench.check_prompt_and_steps()
    mixed, steps = len(bench.config.mixer_layers), 3
    attended = bench.config.num_layers - mixed
    counts = {name: bench.launched.count(name) for name in {*bench.launched}}
    assert counts["gated_delta_scan"] == counts["causal_conv"] == 2 * mixed
    assert counts["gated_delta_step"] == steps * mixed
    assert counts["latent_rotary"] == counts["latent_combine"] == steps * attended


@torch.inference_mode()
def test_fused_steps_equal_transformers(bench: KernelBench) -> None:
    bench.check_fused_steps()
    steps = bench.launched.count("embed")
    assert bench.launched.count("gated_delta_step") == steps * len(bench.config.mixer_layers)
    assert bench.launched.count("router") == steps * sum(
        layer.moe is not None for layer in bench.config.layers
    )


def test_kernels_cover_16_bits(tmp_path: Path) -> None:
    kimi.make(tmp_path)
    config = Model.open(tmp_path).config
    dtypes = (torch.bfloat16, torch.float16, torch.float32)
    assert [kernels_cover(config, dtype) for dtype in dtypes] == [True, True, False]
