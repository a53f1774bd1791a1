"""Gemma 3n by the launches of `CudaOps`, as in `test_emulated_kernels.py`.

Torch computes the mixing of its residual streams and the sparse gates.
"""

from pathlib import Path

import pytest
import torch

from swiftchat.engine.gpu.coverage import kernels_cover
from tests.support import gemma3n
from tests.support.emulated.kernel_bench import KernelBench


@torch.inference_mode()
@pytest.mark.parametrize("changes", [{}, gemma3n.HEADS], ids=["tiny", "wide"])
def test_prompts_and_steps_equal_transformers(changes: dict[str, int], tmp_path: Path) -> None:
    """With tiny heads, or with those of the published models."""
    bench = KernelBench(gemma3n.make(tmp_path, **changes), tmp_path)
    assert kernels_cover(bench.config, torch.float32)
    bench.check_prompt_and_steps()
    # Norms of branch outputs: attention, low-rank residual, MLP and per-layer embeddings.
    layers, calls = bench.config.num_layers, bench.launched.count("embed") // 2
    assert bench.launched.count("add_norm") == 4 * layers * calls
    assert bench.launched.count("rotary") == layers * calls
