"""Keys of `config.json` that an architecture cannot compute: one error, which names the key."""

import json
from pathlib import Path
from typing import Any

import pytest

from swiftchat.errors import BadModelFile
from swiftchat.weights.model.directory import Model
from tests.support import reference

LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0] * 4}


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [
        ("longcat_flash", "zero_expert_type", "drop"),
        ("longcat_flash", "mla_scale_q_lora", False),
        ("longcat_flash", "num_hidden_layers", 3),
        ("longcat_flash", "qk_head_dim", 21),
        ("minimax", "layer_types", ["linear_attention"]),
        ("cohere2_moe", "rope_scaling", {"rope_type": "linear", "factor": 2.0}),
        ("cohere2_moe", "expert_selection_fn", "tanh"),
        ("cohere2_moe", "shared_expert_combination_strategy", "product"),
        ("mllama", "cross_attention_layers", [0, 1, 2, 3]),
        ("apertus1p5_text", "tie_word_embeddings", True),
        ("aria_text", "hidden_act", "gelu"),
        ("laguna", "gating", False),
        ("laguna", "moe_apply_router_weight_on_input", True),
        ("laguna", "num_attention_heads_per_layer", [6, 6]),
        ("mimo_v2_flash", "swa_num_key_value_heads", 2),
        ("mimo_v2_flash", "hybrid_layer_pattern", [1, 1, 1, 1]),
        ("mimo_v2_flash", "add_full_attention_sink_bias", True),
        ("bailing_hybrid", "rope_parameters", LONGROPE),
    ],
)
def test_the_error_names_the_key(model_type: str, key: str, value: Any, tmp_path: Path) -> None:
    reference.copy_reference(model_type, tmp_path)
    assert Model.open(tmp_path).config  # the model itself is supported
    changes = {key: value}
    if model_type == "mllama":
        text = json.loads((tmp_path / "config.json").read_text())["text_config"]
        changes = {"text_config": {**text, key: value}}
    reference.edit_config(tmp_path, **changes)
    named = "original_max_position_embeddings" if value is LONGROPE else key
    with pytest.raises(BadModelFile, match=named):
        _ = Model.open(tmp_path).config
