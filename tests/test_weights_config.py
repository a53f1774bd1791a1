"""ModelConfig: what is read from config.json, and what is refused by name."""

import json
import math
from typing import Any

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftchat.errors import BadModelFile
from swiftchat.weights.config import ModelConfig, RopeConfig
from swiftchat.weights.families import expected_tensors, tensor_name

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "torch_dtype": "bfloat16",
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_reads_every_field() -> None:
    config = ModelConfig.from_hf({**LLAMA, "rope_theta": 5e5, "rope_scaling": LLAMA3_ROPE})
    assert config == ModelConfig(
        family="llama", architecture="LlamaForCausalLM", vocab_size=97, hidden_size=48,
        intermediate_size=80, num_layers=3, num_heads=6, num_kv_heads=2, head_dim=8,
        max_context_tokens=256, norm_eps=1e-5, activation="silu",
        rope=RopeConfig(5e5, "llama3", 8.0, 1.0, 4.0, 8192),
        attention_bias=False, output_bias=False, mlp_bias=False, tied_embeddings=False,
        sliding_window=None, bos_id=1, eos_ids=(2, 3), dtype="bfloat16",
    )  # fmt: skip


def test_old_and_new_rope_spellings_agree() -> None:
    old = ModelConfig.from_hf({**LLAMA, "rope_theta": 5e5, "rope_scaling": LLAMA3_ROPE})
    new = ModelConfig.from_hf({**LLAMA, "rope_parameters": {**LLAMA3_ROPE, "rope_theta": 5e5}})
    assert old.rope == new.rope
    linear = {"type": "linear", "factor": 2.0}
    assert ModelConfig.from_hf({**LLAMA, "rope_scaling": linear}).rope.factor == 2.0


@pytest.mark.parametrize("name", ["Llama", "Mistral"])
def test_absent_keys_mean_what_transformers_takes(name: str) -> None:
    sizes = {
        key: LLAMA[key]
        for key in LLAMA
        if key.endswith(("_size", "_layers", "_heads")) and key != "num_key_value_heads"
    }
    sizes |= {"hidden_size": 64, "num_attention_heads": 16}
    theirs = getattr(transformers, f"{name}Config")(**sizes)
    ours = ModelConfig.from_hf({**sizes, "architectures": [f"{name}ForCausalLM"]})
    assert ours.num_kv_heads == theirs.num_key_value_heads
    assert ours.max_context_tokens == theirs.max_position_embeddings
    assert ours.norm_eps == theirs.rms_norm_eps
    assert ours.sliding_window == getattr(theirs, "sliding_window", None)
    assert ours.rope.theta == theirs.rope_parameters["rope_theta"]
    assert (ours.bos_id, ours.eos_ids) == (theirs.bos_token_id, (theirs.eos_token_id,))
    assert ours.tied_embeddings == theirs.tie_word_embeddings


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_hidden_layers", 10**9),
        ("num_hidden_layers", True),
        ("num_attention_heads", 0),
        pytest.param("num_attention_heads", 10**5000, id="huge"),
        ("num_key_value_heads", 4),
        ("num_key_value_heads", 7),
        ("hidden_size", "48"),
        ("hidden_size", 47),
        ("head_dim", 7),
        ("head_dim", -8),
        ("vocab_size", None),
        ("vocab_size", 97.0),
        ("rms_norm_eps", math.nan),
        ("rms_norm_eps", 0),
        ("rope_theta", math.inf),
        ("rope_theta", "10000"),
        pytest.param("rope_theta", 10**400, id="huge-theta"),
        ("rope_scaling", ["linear"]),
        ("tie_word_embeddings", 1),
        ("attention_bias", "no"),
        ("sliding_window", 0),
        ("bos_token_id", 97),
        ("eos_token_id", [2, -1]),
        ("eos_token_id", list(range(97)) * 3),
        ("torch_dtype", "int8"),
        ("dtype", ["bfloat16"]),
        ("hidden_act", "mish"),
        ("hidden_act", ["silu"]),
        ("partial_rotary_factor", 0.5),
        ("architectures", []),
        ("architectures", "LlamaForCausalLM"),
        ("quantization_config", {"quant_method": "gptq"}),
    ],
)
def test_absurd_field_is_named(field: str, value: object) -> None:
    with pytest.raises(BadModelFile, match=field) as caught:
        ModelConfig.from_hf({**LLAMA, field: value})
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("field", ["factor", "low_freq_factor", "high_freq_factor"])
@pytest.mark.parametrize("value", [0, math.nan, None, "8", True])
def test_absurd_rope_field_is_named(field: str, value: object) -> None:
    with pytest.raises(BadModelFile, match=field):
        ModelConfig.from_hf({**LLAMA, "rope_scaling": {**LLAMA3_ROPE, field: value}})


def test_unknown_rope_scaling_names_itself() -> None:
    with pytest.raises(BadModelFile, match="mrope"):
        ModelConfig.from_hf({**LLAMA, "rope_scaling": {"rope_type": "mrope", "factor": 4.0}})


def test_unknown_architecture_names_itself_the_nearest_and_all() -> None:
    with pytest.raises(BadModelFile, match="LamaForCausalLM") as caught:
        ModelConfig.from_hf({**LLAMA, "architectures": ["LamaForCausalLM"]})
    assert "nearest known: LlamaForCausalLM" in caught.value.hint
    assert "MistralForCausalLM" in caught.value.hint


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
FIELDS = [
    *LLAMA, "head_dim", "rope_theta", "rope_scaling", "rope_parameters", "sliding_window",
    "attention_bias", "mlp_bias", "tie_word_embeddings", "dtype", "hidden_act",
]  # fmt: skip


@given(st.dictionaries(st.sampled_from(FIELDS), json_values, min_size=1, max_size=3))
@settings(max_examples=300, deadline=None)
def test_any_json_gives_a_config_or_bad_model_file(changes: dict[str, Any]) -> None:
    # Through JSON, because that is where configs come from.
    config = json.loads(json.dumps({**LLAMA, **changes}))
    try:
        made = ModelConfig.from_hf(config)
    except BadModelFile:
        return
    assert made.num_heads % made.num_kv_heads == 0
    assert all(0 <= token < made.vocab_size for token in made.eos_ids)
    assert len(expected_tensors(made)) >= 9 * made.num_layers


def test_expected_tensors_are_those_of_transformers() -> None:
    for changes in (
        {},
        {"attention_bias": True, "mlp_bias": True},
        {"tie_word_embeddings": True},
        {"head_dim": 16},
    ):
        config = {**LLAMA, **changes}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))
        theirs = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        assert expected_tensors(ModelConfig.from_hf(config)) == theirs


def test_tensor_name_fills_in_the_layer() -> None:
    config = ModelConfig.from_hf(LLAMA)
    assert tensor_name(config, "q", 2) == "model.layers.2.self_attn.q_proj.weight"
    assert tensor_name(config, "final_norm") == "model.norm.weight"
