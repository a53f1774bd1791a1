"""ModelConfig: fields read from config.json, and errors for invalid or unsupported ones."""

import dataclasses
import json
import math
from typing import Any

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftchat.engine.load.canonicalize import head_order
from swiftchat.engine.model.rope import inverse_frequencies
from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.config import read_model_config
from swiftchat.weights.architectures.parts.attention import Attention, Scores, Values
from swiftchat.weights.architectures.parts.embeddings import Embeddings, Head
from swiftchat.weights.architectures.parts.layers import LayerConfig, Norm
from swiftchat.weights.architectures.parts.mlp import Activation, Mlp
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.rope import RopeConfig, RopeScaling
from swiftchat.weights.architectures.registry import ARCHITECTURES
from swiftchat.weights.architectures.tensors import expected_tensors, tensor_name
from swiftchat.weights.architectures.unsupported_keys import NEUTRAL_VALUES

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
    config = read_model_config({**LLAMA, "rope_theta": 5e5, "rope_scaling": LLAMA3_ROPE})
    layer = LayerConfig(
        attention=Attention(
            num_heads=6,
            num_kv_heads=2,
            head_dim=8,
            values=Values(8),
            scores=Scores(8**-0.5),
            rope=RopeConfig(5e5, RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)),
        ),
        mixer=None,
        mlp=Mlp(80, Activation("silu")),
        moe=None,
    )
    assert config == ModelConfig(
        family="llama",
        architecture="LlamaForCausalLM",
        dtype="bfloat16",
        max_context_tokens=256,
        bos_id=1,
        eos_ids=(2, 3),
        hidden_size=48,
        norm=Norm("rms", 1e-5),
        embeddings=Embeddings(97),
        layers=(layer,) * 3,
        head=Head(tied=False),
    )
    assert [layer.file_layer for layer in config.layers] == [0, 1, 2]


def test_old_and_new_rope_keys_agree() -> None:
    old = read_model_config({**LLAMA, "rope_theta": 5e5, "rope_scaling": LLAMA3_ROPE})
    new = read_model_config({**LLAMA, "rope_parameters": {**LLAMA3_ROPE, "rope_theta": 5e5}})
    assert old.rope == new.rope
    linear = {"type": "linear", "factor": 2.0}
    assert read_model_config({**LLAMA, "rope_scaling": linear}).rope.scaling.factor == 2.0


def absent_keys(architecture: str, **changes: Any) -> dict[str, Any]:
    return {**LLAMA, "architectures": [architecture], "hidden_act": "gelu_pytorch_tanh", **changes}


@pytest.mark.parametrize(
    ("architecture", "field", "value"),
    [
        ("Qwen2ForCausalLM", "layer_types", ["sliding_attention"] * 3),
        ("MistralForCausalLM", "sliding_window", 0),
        ("CwmForCausalLM", "layer_types", ["full_attention", "chunked_attention"] * 2),
        ("CwmForCausalLM", "layer_types", ["full_attention"]),
        ("GPT2LMHeadModel", "scale_attn_by_inverse_layer_idx", True),
        ("BloomForCausalLM", "apply_residual_connection_post_layernorm", True),
        ("PhiForCausalLM", "qk_layernorm", True),
        ("Gemma3ForCausalLM", "use_bidirectional_attention", True),
        ("Qwen3ForCausalLM", "use_sliding_window", "no"),
        ("SmolLM3ForCausalLM", "no_rope_layers", [1, 0]),
        ("SmolLM3ForCausalLM", "no_rope_layers", [1, 0, 2]),
        ("StableLmForCausalLM", "qk_layernorm", "yes"),
        ("Phi3ForCausalLM", "partial_rotary_factor", 0.4),
        ("Phi3ForCausalLM", "rope_scaling", {"type": "longrope", "long_factor": [1.0]}),
        ("Gemma3ForCausalLM", "use_bidirectional_attention", True),
        ("GPT2LMHeadModel", "scale_attn_by_inverse_layer_idx", True),
        ("GPT2LMHeadModel", "activation_function", "mish"),
        ("OPTForCausalLM", "layer_norm_elementwise_affine", False),
        ("BloomForCausalLM", "apply_residual_connection_post_layernorm", True),
        ("FalconForCausalLM", "alibi", 1),
        ("FalconForCausalLM", "num_ln_in_parallel_attn", 3),
        ("MixtralForCausalLM", "num_experts_per_tok", 9),
        ("MixtralForCausalLM", "num_local_experts", 2**20),
        ("Qwen3MoeForCausalLM", "mlp_only_layers", [3]),
        ("Qwen3MoeForCausalLM", "mlp_only_layers", [0] * 4),
        ("Qwen3MoeForCausalLM", "mlp_only_layers", {"0": True}),
        ("Qwen3MoeForCausalLM", "decoder_sparse_step", 0),
        ("Qwen3MoeForCausalLM", "moe_intermediate_size", 0),
        ("Qwen2MoeForCausalLM", "shared_expert_intermediate_size", -1),
        ("Qwen2MoeForCausalLM", "qkv_bias", 1),
        ("GptOssForCausalLM", "swiglu_limit", 0),
        ("GptOssForCausalLM", "swiglu_limit", math.nan),
        ("GptOssForCausalLM", "swiglu_alpha", 1.5),
        ("GptOssForCausalLM", "num_experts_per_tok", 129),
        ("GptOssForCausalLM", "sliding_window", 0),
        ("GptOssForCausalLM", "layer_types", ["full_attention"] * 4),
        ("ChatGLMModel", "rmsnorm", False),
        ("ChatGLMModel", "num_attention_heads", "6"),
    ],
)
def test_unsupported_field_raises_an_error_with_its_name(
    architecture: str, field: str, value: object
) -> None:
    usual = {
        "rope_parameters": "partial_rotary_factor",
        "rope_scaling": "factor",
        "hidden_activation": "hidden_act",
        "activation_function": "hidden_act",
    }
    spelled = {"padded_vocab_size": 97, "num_layers": 3, "ffn_hidden_size": 80, "kv_channels": 8}
    known = read_model_config(absent_keys(architecture, **spelled))
    assert known.architecture == architecture
    with pytest.raises(BadModelFile, match=usual.get(field, field)):
        read_model_config(absent_keys(architecture, **spelled, **{field: value}))


CHATGLM_6B = {
    "architectures": ["ChatGLMModel"],
    "vocab_size": 97,
    "hidden_size": 48,
    "num_layers": 3,
    "num_attention_heads": 3,
    "inner_hidden_size": 80,
    "position_encoding_2d": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "gmask_token_id": 0,
    "mask_token_id": 5,
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("position_encoding_2d", False),
        ("quantization_bit", 4),
        ("pre_seq_len", 128),
        ("hidden_size", 42),
        ("num_layers", 10**9),
        ("gmask_token_id", 97),
        ("mask_token_id", None),
        ("bos_token_id", "1"),
        ("max_sequence_length", 0),
        ("layernorm_epsilon", math.nan),
    ],
)
def test_unsupported_chatglm_6b_field_raises_an_error_with_its_name(
    field: str, value: object
) -> None:
    assert read_model_config(CHATGLM_6B).family == "chatglm-6b"
    usual = {
        "num_layers": "num_hidden_layers",
        "max_sequence_length": "max_position_embeddings",
        "layernorm_epsilon": "rms_norm_eps",
    }
    with pytest.raises(BadModelFile, match=usual.get(field, field)):
        read_model_config({**CHATGLM_6B, field: value})


def test_older_keys_are_equivalent() -> None:
    """The keys of older published files and those that transformers writes now."""
    gemma = absent_keys(
        "Gemma3ForCausalLM",
        rope_theta=1e6,
        rope_local_base_freq=5e3,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        num_hidden_layers=6,  # the last one has no window
    )
    config = read_model_config(gemma)
    assert config.rope == RopeConfig(1e6, RopeScaling("linear", 8.0))
    assert [rope for rope, _ in config.ropes] == [RopeConfig(5e3), config.rope]
    neox = absent_keys("GPTNeoXForCausalLM", rotary_pct=0.5, rotary_emb_base=5e4)
    assert read_model_config(neox).rope == RopeConfig(5e4, rotary_dim=4)
    falcon = absent_keys(
        "FalconForCausalLM", n_head=12, n_layer=2, n_head_kv=3, new_decoder_architecture=True
    )
    with pytest.raises(BadModelFile, match="n_layer must be equal to num_hidden_layers, not 2"):
        read_model_config(falcon)
    renamed = ("num_attention_heads", "num_hidden_layers", "num_key_value_heads")
    config = read_model_config({k: v for k, v in falcon.items() if k not in renamed})
    assert (config.attention.num_heads, config.num_layers, config.attention.num_kv_heads) == (
        12,
        2,
        3,
    )
    su = {"type": "su", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    phi = absent_keys("Phi3ForCausalLM", rope_scaling=su, original_max_position_embeddings=64)
    rope = read_model_config(phi).rope
    assert rope is not None and rope.scaling.kind == "longrope"
    assert rope.magnitude == pytest.approx(math.sqrt(1 + math.log(4) / math.log(64)))


@pytest.mark.fault(32)
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
        ("bos_token_id", 97),
        ("eos_token_id", [2, -2]),
        ("eos_token_id", list(range(97)) * 3),
        ("torch_dtype", "int8"),
        ("dtype", ["bfloat16"]),
        ("hidden_act", "mish"),
        ("hidden_act", ["silu"]),
        ("architectures", []),
        ("architectures", "LlamaForCausalLM"),
        ("quantization_config", {"quant_method": "gptq"}),
    ],
)
def test_invalid_field_raises_an_error_with_its_name(field: str, value: object) -> None:
    with pytest.raises(BadModelFile, match=field) as caught:
        read_model_config({**LLAMA, field: value})
    assert len(caught.value.message) < 300


@pytest.mark.fault(32)
@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("num_hidden_layers", 10**9, "1000000000"),
        ("num_attention_heads", 0, "0"),
        ("rms_norm_eps", math.nan, "nan"),
        ("hidden_size", "many", "many"),
        ("vocab_size", [258], "list"),
        pytest.param("intermediate_size", 10**3999, "huge", id="huge"),
    ],
)
def test_the_invalid_value_is_shown(field: str, value: object, shown: str) -> None:
    with pytest.raises(BadModelFile, match=field) as caught:
        read_model_config({**LLAMA, field: value})
    assert shown in caught.value.message.casefold() and caught.value.exit_code == 7


@pytest.mark.parametrize("field", ["factor", "low_freq_factor", "high_freq_factor"])
@pytest.mark.parametrize("value", [0, math.nan, None, "8", True])
def test_invalid_rope_field_raises_an_error_with_its_name(field: str, value: object) -> None:
    with pytest.raises(BadModelFile, match=field):
        read_model_config({**LLAMA, "rope_scaling": {**LLAMA3_ROPE, field: value}})


def test_rope_fields_in_the_wrong_order_raise_an_error() -> None:
    factors = {"low_freq_factor": 4.0, "high_freq_factor": 3.9}
    with pytest.raises(BadModelFile, match="high_freq_factor must be a number from"):
        read_model_config({**LLAMA, "rope_scaling": {**LLAMA3_ROPE, **factors}})


def test_unknown_rope_scaling_raises_an_error_with_its_name() -> None:
    with pytest.raises(BadModelFile, match="ntk"):
        read_model_config({**LLAMA, "rope_scaling": {"rope_type": "ntk", "factor": 4.0}})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attn_logit_softcapping", 30.0),
        ("num_local_experts", 8),
        ("alibi", True),
        ("logit_scale", 0.0625),
        ("rotary_dim", 4),
        ("sliding_window", 7),
        ("partial_rotary_factor", 0.5),
        ("rope_parameters", {"partial_rotary_factor": 0.5}),
        ("use_parallel_residual", True),
    ],
)
def test_keys_without_effect_are_named(field: str, value: object) -> None:
    """As in transformers, which ignores them in this architecture; see tests/sweep."""
    config = read_model_config({**LLAMA, field: value})
    assert config.ignored_keys == (field.replace("rope_parameters", "partial_rotary_factor"),)
    assert dataclasses.replace(config, ignored_keys=()) == read_model_config(LLAMA)


def test_the_error_for_an_unknown_architecture_names_a_similar_one_only() -> None:
    for name, similar in (("LamaForCausalLM", "similar: LlamaForCausalLM"), ("MuseGlimmer", "")):
        with pytest.raises(BadModelFile, match=f"unknown architecture '{name}'") as caught:
            read_model_config({**LLAMA, "architectures": [name], "model_type": "new"})
        assert caught.value.hint.startswith(similar or "swiftchat help models")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
ALL_KEYS = sorted(
    {
        key
        for architecture in ARCHITECTURES.values()
        for key in (*architecture.renamed.values(), *architecture.defaults)
    }
    | {*NEUTRAL_VALUES, "layer_types"}
)
small_values = json_values | st.sampled_from([0, 1, 2, 4, 8, 0.5, True, False, [], [1, 1, 1]])
stretched = st.fixed_dictionaries(
    {
        "rope_type": st.sampled_from(["yarn", "longrope", "dynamic", "linear", "llama3"]),
        "factor": small_values,
        "original_max_position_embeddings": small_values,
    },
    optional={
        "rope_theta": small_values,
        "short_factor": small_values,
        "mscale": small_values,
        "long_factor": small_values,
        "partial_rotary_factor": small_values,
    },
)


@given(
    st.sampled_from(sorted(ARCHITECTURES)),
    st.dictionaries(st.sampled_from(ALL_KEYS), small_values, max_size=4),
    st.none() | stretched,
)
@settings(max_examples=200, deadline=None)
def test_any_json_gives_a_config_of_any_architecture_or_bad_model_file(
    architecture: str, changes: dict[str, Any], rope: dict[str, Any] | None
) -> None:
    sizes = {"padded_vocab_size": 97, "num_layers": 3, "ffn_hidden_size": 80, "kv_channels": 8}
    config = absent_keys(architecture, **sizes, rope_parameters=rope) | changes
    try:
        made = read_model_config(json.loads(json.dumps(config)))
    except BadModelFile:
        return
    assert made.attention.num_heads % made.attention.num_kv_heads == 0
    assert len(expected_tensors(made)) > made.num_layers
    for attention in made.attentions:
        head_dim = attention.head_dim
        if attention.rope is not None:
            assert inverse_frequencies(attention.rope, head_dim, 9).shape == (head_dim // 2,)
        order = head_order(attention.rope, head_dim)
        assert order is None or sorted(order.tolist()) == list(range(head_dim))


def test_expected_tensors_equal_those_of_transformers() -> None:
    for changes in (
        {},
        {"attention_bias": True, "mlp_bias": True},
        {"tie_word_embeddings": True},
        {"head_dim": 16},
    ):
        config = {**LLAMA, **changes}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))
        theirs = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        assert expected_tensors(read_model_config(config)) == theirs


def test_tensor_name_contains_the_layer() -> None:
    config = read_model_config(LLAMA)
    assert tensor_name(config, "q", 2) == "model.layers.2.self_attn.q_proj.weight"
    assert tensor_name(config, "final_norm") == "model.norm.weight"
