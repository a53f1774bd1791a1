"""Decode steps whose attention normalizes and rotates heads, as in `test_emulated_kernels.py`."""

from pathlib import Path

import pytest
import torch

from tests.support.emulated.kernel_bench import KernelBench
from tests.support.reference import make_reference


@pytest.mark.parametrize("model_type", ["qwen3", "gemma3_text", "qwen3_moe", "glm4_moe"])
@torch.inference_mode()
def test_steps_equal_transformers_without_a_kernel_for_the_rotation(
    model_type: str, tmp_path: Path
) -> None:
    changes = {"use_qk_norm": True} if model_type == "glm4_moe" else {}
    bench = KernelBench(make_reference(model_type, tmp_path, head_dim=64, **changes), tmp_path)
    bench.check_fused_steps()
    launched = bench.launched
    assert "rotary" not in launched
    assert launched.count("decode_attention") == bench.config.num_layers * launched.count("embed")
