"""Keys of `config.json` whose meaning depends on other keys or on the tensors in the files.

Each case once differed silently from transformers.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from swiftchat.weights.model.directory import Model
from tests.support import reference

_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
_LLAMA3 = {**_YARN, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("llama", {"rope_scaling": _YARN}),
        ("llama", {"rope_parameters": {**_YARN, "beta_fast": None, "beta_slow": None}}),
        ("llama", {"rope_scaling": _LLAMA3, "original_max_position_embeddings": 16}),
        # As published of Llama 4 Scout.
        ("llama4_text", {"rope_scaling": {**_LLAMA3, "high_freq_factor": 1.0}}),
        ("llama", {"sliding_window": 5}),
        ("mistral", {"use_sliding_window": False}),
        ("gemma", {"hidden_act": "relu"}),
        ("gemma", {"hidden_act": "quick_gelu"}),
        ("gemma3_text", {"attn_logit_softcapping": 5.0}),
        ("gemma3_text", {"rope_scaling": _YARN}),
        ("gpt_neox", {"rope_theta": 500.0}),
        ("gptj", {"rope_theta": 500.0}),
        ("gpt_oss", {"rope_scaling": {}}),
        ("gpt_oss", {"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}}),
        ("opt", {"activation_function": "relu2"}),
        ("qwen2_moe", {}),
        ("olmo_hybrid", {"rope_parameters": None}),
        ("olmo_hybrid", {"rope_parameters": {"rope_theta": None, "rope_type": "default"}}),
        (
            "kimi_linear",
            {
                "layer_types": None,
                "mlp_layer_types": None,
                "linear_attn_config": {
                    "full_attn_layers": [3],
                    "kda_layers": [1, 2, 4],
                    "head_dim": 12,
                    "num_heads": 4,
                    "short_conv_kernel_size": 4,
                },
            },
        ),
    ],
)
def test_logits_equal_those_of_transformers(
    model_type: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    reference.copy_reference(model_type, tmp_path)
    reference.edit_config(tmp_path, **changes)
    loaded = reference.load_reference(model_type, tmp_path)
    expected = reference.reference_logits(loaded, reference.prompt_ids())
    assert reference.outcome(tmp_path, expected) == "equal"


@pytest.mark.parametrize("differs", [True, False])
def test_an_output_matrix_in_the_files_wins_over_tied_embeddings(
    differs: bool, tmp_path: Path
) -> None:
    reference.copy_reference("llama", tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    if not differs:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, file, {"format": "pt"})
    reference.edit_config(tmp_path, tie_word_embeddings=True)
    expected = reference.reference_logits(
        reference.load_reference("llama", tmp_path), reference.prompt_ids()
    )
    assert reference.outcome(tmp_path, expected) == "equal"
    model = Model.open(tmp_path)
    assert model.config.head.tied != differs
    assert len(model.notes) == differs


_KINDS = ["full_attention", "sliding_attention"] * 2


@pytest.mark.parametrize(
    ("model_type", "made", "changes"),
    [
        ("helium", {"mlp_bias": True}, {}),  # its biases are in the file
        ("kolibri1", {"norm_topk_prob": False}, {"norm_topk_prob": None}),
        ("bailing_hybrid", {"norm_topk_prob": False}, {"moe_renormalize": None}),
        ("kimi_linear", {"norm_topk_prob": False}, {"moe_renormalize": None}),
        ("phimoe", {"num_experts_per_tok": 1}, {}),  # its class uses two
        # These classes have the same window in all layers.
        *(
            (model_type, {"sliding_window": 4}, {"layer_types": _KINDS})
            for model_type in ("phimoe", "ministral3", "mistral", "starcoder2")
        ),
    ],
)
def test_models_made_with_other_keys(
    model_type: str, made: dict[str, Any], changes: dict[str, Any], tmp_path: Path
) -> None:
    """The weights belong to the keys, and the logits follow from what the class reads."""
    expected = reference.copy_reference(model_type, tmp_path, **made)
    config = json.loads((tmp_path / "config.json").read_text())
    names = {"moe_renormalize", "norm_topk_prob"} if None in changes.values() else set()
    kept = {name: value for name, value in config.items() if name not in names}
    (tmp_path / "config.json").write_text(json.dumps(kept | changes))
    assert reference.outcome(tmp_path, expected) == "equal"
