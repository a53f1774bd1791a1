"""Architectures of 2026: their files run as they are, and what their classes lack is refused."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from swiftchat.errors import BadModelFile
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.formats.gguf import open_gguf
from swiftchat.weights.gguf.architectures import gguf_architecture
from swiftchat.weights.gguf.config import model_config_json
from swiftchat.weights.gguf.tensors import block_matrices, tensor_sources
from swiftchat.weights.model.directory import Model
from tests.support import tiny
from tests.support.gguf import directory as gguf_directory
from tests.support.gguf import models as gguf_models
from tests.support.gguf.models import CASES, copy_case, made, write_case
from tests.support.reference import copy_reference

# The number of heads, windows and rotations of a layer for further tokens.
_MORE = {
    "hy_v3": {},
    "mellum": {"attention.sliding_window_pattern": [False, True, False, True, True]},
    "laguna": {"attention.head_count": [6, 4, 6, 8, 8]},
    # The converter has no flag for it.
    "cohere2moe": {"attention.sliding_window_pattern": [False, True, False, True]},
    "deepseek32": {},
    "bailingmoe3": {"attention.head_count_kv": [0, 0, 1, 0, 1]},
}
_WIDE = {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32}
_WIDE_LATENT = {**_WIDE, "q_lora_rank": 32, "kv_lora_rank": 32}
_SIZES: dict[str, dict[str, Any]] = {
    "bitnet": {"hidden_size": 96, "intermediate_size": 96, "tie_word_embeddings": True},
    "hy_v3": _WIDE,
    "mellum": {**_WIDE, "mlp_layer_types": ["sparse"] * 4},
    "laguna": {
        **_WIDE,
        "layer_types": ["full_attention", *["sliding_attention"] * 3],
        "moe_router_logit_softcapping": 0.0,
        "shared_expert_intermediate_size": 32,
    },
    "cohere2moe": {"hidden_size": 64, "intermediate_size": 96},
    "granite_swa": {"hidden_size": 96, "intermediate_size": 96},
    "granite_swa-experts": {
        "hidden_size": 96,
        "intermediate_size": 96,
        "shared_intermediate_size": 32,
        "layer_rope_theta": [300.0, 300.0, 0, 300.0],
    },
    "deepseek32": _WIDE_LATENT,
    "bailingmoe3": {**_WIDE, "kv_lora_rank": 32, "attention_bias": False},
}


def ours_and_theirs(folder: Path, path: Path, reference: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the last logits of a file as it is, and those of transformers."""
    gguf_directory.of_file(path, folder / "in-place")
    ours = tiny.Bench(folder / "in-place").last_logits(tiny.random_ids(12))
    return ours, gguf_models.logits(reference)[-1]


@pytest.mark.parametrize("name", [*_MORE, "bitnet", "granite_swa", "granite_swa-experts"])
def test_file_runs_as_it_is(name: str, tmp_path: Path) -> None:
    """Also with a layer at the end that predicts further tokens."""
    reference = made(name, tmp_path / "theirs")
    changes: dict[str, Any] = {}
    if name in _MORE:
        changes["tensors"] = {"blk.4.nextn.eh_proj.weight": np.ones((48, 96), np.float32)}
        changes["metadata"] = {"block_count": 5, "nextn_predict_layers": 1, **_MORE[name]}
    write_case(name, tmp_path / "model.gguf", tmp_path / "theirs", **changes)
    ours, theirs = ours_and_theirs(tmp_path, tmp_path / "model.gguf", reference)
    assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()


@pytest.mark.parametrize("name", _SIZES)
def test_blocks_stay_quantized(name: str, tmp_path: Path) -> None:
    """The logits equal those of the dequantized weights, in transformers too."""
    variant, arch, _ = CASES[name]
    copy_reference(variant, tmp_path / "theirs", **_SIZES[name])
    path, kind = tmp_path / "model.gguf", gguf.GGMLQuantizationType.Q8_0
    gguf_models.write(path, tmp_path / "theirs", arch, raw_type=kind)
    convert(path, tmp_path / "plain", dtype="float32")
    expected = gguf_models.logits(gguf_models.loaded(tmp_path / "plain"))[-1]
    gguf_directory.of_file(path, tmp_path / "in-place", "float32")
    found = tiny.Bench(tmp_path / "in-place").last_logits(tiny.random_ids(12))
    # In fp32 only the order of sums differs, and the rounding of activations of some kernels.
    assert (found - expected).abs().max() <= 2e-3 * expected.abs().max()
    config, file = Model.open(tmp_path / "in-place").config, open_gguf(path)
    kept = block_matrices(config, tensor_sources(file, gguf_architecture(file)[0], config))
    assert any("mlp" in each or "moe" in each for each in kept)
    assert any("attn" in each or "attention" in each for each in kept)


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("hy_v3", {"expert_gating_func": 1}, "expert_gating_func must be 2"),
        ("hy_v3", {"expert_weights_norm": False}, "expert_weights_norm must be true"),
        ("hy_v3", {"expert_shared_feed_forward_length": 25}, "must be a multiple"),
        ("laguna", {"expert_gating_func": 1}, "expert_gating_func must be 2"),
        ("laguna", {"expert_weights_norm": False}, "expert_weights_norm must be true"),
        ("laguna", {"attention.head_count": [6, 4]}, "num_attention_heads_per_layer"),
        ("afmoe", {"expert_gating_func": 1}, "expert_gating_func must be 2"),
        ("cohere2moe", {"expert_weights_scale": 2.0}, "expert_weights_scale is not supported"),
        ("cohere2moe", {"expert_gating_func": 3}, "softmax or sigmoid"),
        ("granite_swa", {"attention.rope_pattern": 1}, "rope_pattern must be a list"),
        ("granite_swa", {"attention.rope_pattern": [1]}, "layer_rope_theta"),
        ("mellum", {"attention.sliding_window_pattern": [True]}, "a list of 4 flags"),
        ("mellum", {"rope.scaling.type": "spiral"}, "'spiral' is not supported"),
        ("bailingmoe3", {"swiglu_clamp_exp": [0.0, 4.0, 0.0, 0.0]}, "experts with limits"),
        ("bailingmoe3", {"swiglu_clamp_shexp": 5.0}, "experts with limits"),
        ("bailingmoe3", {"expert_gating_func": 1}, "expert_gating_func must be 2"),
        ("bailingmoe3", {"attention.head_count_kv": 1}, "head_count_kv must be a list"),
        ("bailingmoe3", {"kda.gate_lower_bound": None}, "kda.gate_lower_bound is missing"),
        ("bitnet", {"hidden_activation": "spiral"}, "hidden_act"),
    ],
)
def test_what_the_class_lacks_is_refused(
    name: str, keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    copy_case(name, tmp_path / "theirs")
    write_case(name, tmp_path / "model.gguf", tmp_path / "theirs", metadata=keys)
    with pytest.raises(BadModelFile, match=message):
        model_config_json(open_gguf(tmp_path / "model.gguf"), "float32")


@pytest.mark.parametrize(
    ("name", "keys", "found"),
    [
        # The defaults of llama.cpp's loaders, where those of the classes differ.
        ("bitnet", {"hidden_activation": None}, {"hidden_act": "silu"}),
        ("hy_v3", {"expert_weights_scale": None}, {"router_scaling_factor": 1.0}),
        ("hy_v3", {"expert_shared_feed_forward_length": 48}, {"num_shared_experts": 2}),
        ("cohere2moe", {"expert_gating_func": None}, {"expert_selection_fn": "sigmoid"}),
        ("cohere2moe", {"expert_weights_norm": None}, {"norm_topk_prob": False}),
        (
            "cohere2moe",
            {"attention.sliding_window_pattern": 2},
            {"layer_types": ["full_attention", "sliding_attention"] * 2},
        ),
        (
            "laguna",
            {"attention.sliding_window_pattern": [True, False, True, False]},
            {"layer_types": ["sliding_attention", "full_attention"] * 2},
        ),
        ("laguna", {"attention.sliding_window": None}, {"layer_types": None}),
        ("laguna", {"attention.sliding_window": 0}, {"layer_types": None}),
        ("granite_swa", {"attention.rope_pattern": None}, {"layer_rope_theta": None}),
        ("bailingmoe3", {"swiglu_clamp_exp": [0.0] * 4}, {"kda_safe_gate": True}),
        ("bailingmoe3", {"expert_weights_norm": None}, {"moe_renormalize": False}),
    ],
)
def test_keys_that_files_may_lack(
    name: str, keys: dict[str, Any], found: dict[str, Any], tmp_path: Path
) -> None:
    copy_case(name, tmp_path / "theirs")
    write_case(name, tmp_path / "model.gguf", tmp_path / "theirs", metadata=keys)
    config = model_config_json(open_gguf(tmp_path / "model.gguf"), "float32")
    assert {key: config.get(key) for key in found} == found


@pytest.mark.parametrize("ending", ["", ".bias", ".weight"])
def test_suffixes_of_the_bias_of_the_choice(ending: str, tmp_path: Path) -> None:
    copy_case("hy_v3", tmp_path / "theirs")
    stored = load_file(tmp_path / "theirs" / "model.safetensors")
    biases = {i: stored[f"model.layers.{i}.mlp.expert_bias"].numpy() for i in (1, 2, 3)}
    write_case(
        "hy_v3",
        tmp_path / "model.gguf",
        tmp_path / "theirs",
        without=tuple(f"blk.{i}.exp_probs_b" for i in biases if ending),
        tensors={f"blk.{i}.exp_probs_b{ending}": bias for i, bias in biases.items()},
    )
    convert(tmp_path / "model.gguf", tmp_path / "ours")
    found = load_file(tmp_path / "ours" / "model.safetensors")
    for i, bias in biases.items():
        assert np.array_equal(found[f"model.layers.{i}.mlp.expert_bias"].numpy(), bias)


def test_a_windowless_laguna_has_full_attention_everywhere(tmp_path: Path) -> None:
    """As Laguna M.1, whose file names no window."""
    made("laguna", tmp_path / "theirs")
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    full = {**config, "layer_types": ["full_attention"] * 4}
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(full))
    reference = gguf_models.loaded(tmp_path / "theirs")
    path = tmp_path / "model.gguf"
    write_case("laguna", path, tmp_path / "theirs", metadata={"attention.sliding_window": None})
    ours, theirs = ours_and_theirs(tmp_path, path, reference)
    assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()
