"""A tiny Kimi Linear model with heads and latents of sizes that the CUDA kernels take."""

from pathlib import Path
from typing import TYPE_CHECKING

from tests.support import reference

if TYPE_CHECKING:
    import transformers


def make(folder: Path) -> "transformers.PreTrainedModel":
    """Save a random fp32 model in `folder` and return it."""
    return reference.make_reference(
        "kimi_linear",
        folder,
        hidden_size=64,
        kv_lora_rank=256,
        qk_nope_head_dim=32,
        qk_rope_head_dim=32,
        v_head_dim=32,
        linear_head_dim=128,
        linear_num_heads=2,
    )
