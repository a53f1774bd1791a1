"""Tiny Llama 4 models like the published ones, and one with all that the architecture has."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tests.support import reference

if TYPE_CHECKING:
    import transformers

# Changes of the sizes in `reference_sizes`: there chunks have 7 tokens, every second layer experts.
VARIANTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # Two chosen experts, though the published models have one.
        "all": {},
        "scout": {"interleave_moe_layer_step": 1, "num_experts_per_tok": 1},
        "maverick": {"use_qk_norm": False, "num_experts_per_tok": 1},
    }
)
# The published sizes of heads and groups.
HEADS: Mapping[str, Any] = MappingProxyType(
    {
        "hidden_size": 64,
        "num_attention_heads": 10,
        "num_key_value_heads": 2,
        "head_dim": 128,
    }
)


def make(name: str, folder: Path, **changes: Any) -> "transformers.PreTrainedModel":
    """Save a random fp32 model of this variant in `folder` and return it."""
    return reference.make_reference("llama4_text", folder, **{**VARIANTS[name], **changes})
