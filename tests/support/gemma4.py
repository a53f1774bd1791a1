"""Tiny Gemma 4 models like the published ones: small, with experts, and large."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tests.support import reference

if TYPE_CHECKING:
    import transformers

_LARGE = {
    "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0,
    "use_double_wide_mlp": False,
}
# Changes of the sizes in `reference_sizes`.
VARIANTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # All parts in one model, embeddings of the layers with an odd width.
        "all": {},
        "small": {
            "enable_moe_block": False,
            "attention_k_eq_v": False,
            "num_global_key_value_heads": None,
            "hidden_size_per_layer_input": 16,
        },
        "experts": _LARGE,
        "large": {**_LARGE, "enable_moe_block": False},
    }
)
# The published sizes of heads.
HEADS: Mapping[str, Any] = MappingProxyType(
    {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "global_head_dim": 512,
    }
)


def make(name: str, folder: Path, **changes: Any) -> "transformers.PreTrainedModel":
    """Save a random fp32 model of this variant in `folder` and return it."""
    model = reference.make_reference("gemma4_text", folder, **{**VARIANTS[name], **changes})
    save_with_small_scores(model, folder)
    return model


def save_with_small_scores(model: "transformers.PreTrainedModel", folder: Path) -> None:
    """Change a random model, and save it, so that its attention's scores have a spread near 1.

    It is as if they were divided by √head_dim. Otherwise one token takes nearly all of the weight,
    and a rounding changes which one.
    """
    for key, weight in model.named_parameters():
        if key.endswith("q_norm.weight"):
            weight.data *= len(weight) ** -0.5
    model.save_pretrained(folder)
