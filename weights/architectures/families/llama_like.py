"""Models that differ from Llama in norms, activation, biases, windows or rotation.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.families.gemma import every_nth_full
from swiftchat.weights.architectures.parts.architecture import (
    LLAMA_TENSORS,
    Architecture,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_CONTEXT,
    MAX_HEAD_DIM,
    MAX_LAYERS,
    Fields,
    flag,
    hidden_size,
    integer,
    invalid,
    layer_types,
    mapping,
    num_heads,
    num_layers,
    optional_integer,
    optional_number,
)
from swiftchat.weights.architectures.parts.rope import QueryGrowth, RopeConfig, layer_ropes

OUTPUT_NORMS = frozen(
    attn_out_norm="post_attention_layernorm.weight",
    mlp_out_norm="post_feedforward_layernorm.weight",
)
_UNGATED = llama_tensors({}, without=("gate", "gate_bias"))


def _arcee(config: Fields) -> Mapping[str, Any]:
    return {"gated": False}


def _layer_norms(config: Fields) -> Mapping[str, Any]:
    return {"gated": False, "norm": "layer", "norm_bias": True}


def _nemotron(config: Fields) -> Mapping[str, Any]:
    return {**_layer_norms(config), "norm_unit_offset": True}


def _ernie(config: Fields) -> Mapping[str, Any]:
    bias = flag(config, "use_bias")
    return {"attention_bias": bias, "output_bias": bias, "mlp_bias": bias}


def _seed_oss(config: Fields) -> Mapping[str, Any]:
    return {"output_bias": flag(config, "attention_out_bias")}


def _no_output_bias(config: Fields) -> Mapping[str, Any]:
    return {"output_bias": False}


def _ministral3(config: Fields) -> Mapping[str, Any]:
    head_dim = integer(config, "head_dim", 2, MAX_HEAD_DIM)
    if config.get("rope_parameters") is None:
        config = {**config, "rope_parameters": _MINISTRAL3_ROPE}
    rope = mapping(config, "rope_scaling") or mapping(config, "rope_parameters") or {}
    beta = optional_number(rope, "llama_4_scaling_beta", above=-1e-9, below=1e3)
    name = "original_max_position_embeddings"
    fields = config if config.get(name) is not None else rope
    tokens = optional_integer(fields, name, 1, MAX_CONTEXT)
    if beta is None or tokens is None:
        raise invalid(f"llama_4_scaling_beta and {name}", "in rope_parameters", None)
    return {
        "attention_bias": False,
        "output_bias": False,
        "mlp_bias": False,
        "query_growth": QueryGrowth(beta, float(tokens)),
        "rope": RopeConfig.from_hf(config, head_dim),
    }


def _cwm(config: Fields) -> Mapping[str, Any]:
    head_dim = integer(config, "head_dim", 2, MAX_HEAD_DIM)
    if config.get("rope_parameters") is None:
        config = {**config, "rope_parameters": _CWM_ROPE}
    kinds = ["sliding_attention" if i % 4 else "full_attention" for i in range(num_layers(config))]
    return {
        "attention_bias": False,
        "rope": RopeConfig.from_hf(config, head_dim),
        "layer_types": kinds,
    }


def hunyuan(config: Fields) -> Mapping[str, Any]:
    """Return the overrides of HunYuan's attention."""
    return {"mlp_bias": False, "qk_norm": "head", "qk_norm_after_rope": True}


def exaone4(config: Fields) -> Mapping[str, Any]:
    """Return the overrides of EXAONE 4's attention: only layers with a window are rotated."""
    windowed = config.get("sliding_window") is not None
    kinds = layer_types(config)
    if kinds is None:
        pattern = integer(config, "sliding_window_pattern", 1, MAX_LAYERS) if windowed else 1
        kinds = every_nth_full(config, pattern)
    full = frozenset(i for i, kind in enumerate(kinds) if kind == "full_attention")
    return {
        "attention_bias": False,
        "mlp_bias": False,
        "qk_norm": "head",
        "layer_types": kinds,
        "unrotated_layers": full if windowed else frozenset(),
    }


def _exaone4(config: Fields) -> Mapping[str, Any]:
    return {**exaone4(config), "norm_order": "output"}


def _olmo(config: Fields) -> Mapping[str, Any]:
    return {
        "mlp_bias": False,
        "norm": "layer",
        "norm_weights": False,
        "norm_eps": 1e-5,
        "clip_qkv": optional_number(config, "clip_qkv", above=0.0, below=1e6),
    }


def _olmo3(config: Fields) -> Mapping[str, Any]:
    head_dim = hidden_size(config) // num_heads(config)
    return {
        "mlp_bias": False,
        "norm_order": "output",
        "qk_norm": "width",
        **layer_ropes(config, head_dim, 5e5),
        "layer_types": every_nth_full(config, 4),
    }


_MINISTRAL3_ROPE = frozen(
    rope_type="yarn",
    rope_theta=1e6,
    factor=16.0,
    beta_fast=32.0,
    beta_slow=1.0,
    mscale=1.0,
    mscale_all_dim=1.0,
    original_max_position_embeddings=16_384,
    llama_4_scaling_beta=0.1,
)
_CWM_ROPE = frozen(
    rope_type="llama3",
    rope_theta=1e6,
    factor=16.0,
    high_freq_factor=4.0,
    low_freq_factor=1.0,
    original_max_position_embeddings=8192,
)
_HUNYUAN_NORMS = frozen(
    q_norm="self_attn.query_layernorm.weight", k_norm="self_attn.key_layernorm.weight"
)

LLAMA_LIKE: Mapping[str, Architecture] = {
    "ArceeForCausalLM": Architecture(
        name="arcee",
        model_type="arcee",
        overrides=_arcee,
        tensors=_UNGATED,
        defaults=frozen(
            max_position_embeddings=4096,
            rms_norm_eps=1e-5,
            hidden_act="relu2",
            bos_token_id=128_000,
            eos_token_id=128_001,
        ),
    ),
    "NemotronForCausalLM": Architecture(
        name="nemotron",
        model_type="nemotron",
        overrides=_nemotron,
        tensors=_UNGATED,
        renamed=frozen(rms_norm_eps="norm_eps"),
        supported_keys=frozenset({"partial_rotary_factor"}),
        defaults=frozen(
            max_position_embeddings=4096,
            norm_eps=1e-5,
            hidden_act="relu2",
            partial_rotary_factor=0.5,
            bos_token_id=2,
            eos_token_id=3,
        ),
    ),
    "Jais2ForCausalLM": Architecture(
        name="jais2",
        model_type="jais2",
        overrides=_layer_norms,
        tensors=_UNGATED,
        renamed=frozen(rms_norm_eps="layer_norm_eps"),
        defaults=frozen(
            max_position_embeddings=8192,
            layer_norm_eps=1e-5,
            hidden_act="relu2",
            attention_bias=True,
            mlp_bias=True,
            bos_token_id=0,
            eos_token_id=150_024,
        ),
    ),
    "Ernie4_5ForCausalLM": Architecture(
        name="ernie4_5",
        model_type="ernie4_5",
        overrides=_ernie,
        interleaved_rope=True,
        tensors=LLAMA_TENSORS,
        defaults=frozen(
            max_position_embeddings=131_072,
            rms_norm_eps=1e-5,
            num_key_value_heads=2,
            head_dim=128,
            rope_theta=5e5,
            tie_word_embeddings=True,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "SeedOssForCausalLM": Architecture(
        name="seed_oss",
        model_type="seed_oss",
        overrides=_seed_oss,
        tensors=LLAMA_TENSORS,
        defaults=frozen(
            max_position_embeddings=524_288,
            rms_norm_eps=1e-6,
            num_key_value_heads=8,
            head_dim=128,
            attention_bias=True,
            bos_token_id=0,
            eos_token_id=2,
        ),
    ),
    "HeliumForCausalLM": Architecture(
        name="helium",
        model_type="helium",
        overrides=_no_output_bias,
        interleaved_rope=True,
        tensors=LLAMA_TENSORS,
        defaults=frozen(
            max_position_embeddings=4096,
            rms_norm_eps=1e-8,
            num_key_value_heads=20,
            head_dim=128,
            rope_theta=1e5,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "MinistralForCausalLM": Architecture(
        name="ministral",
        model_type="ministral",
        windowed=True,
        tensors=LLAMA_TENSORS,
        defaults=frozen(
            max_position_embeddings=131_072,
            rms_norm_eps=1e-6,
            num_key_value_heads=8,
            sliding_window=4096,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "Ministral3ForCausalLM": Architecture(
        name="ministral3",
        model_type="ministral3",
        overrides=_ministral3,
        windowed=True,
        same_windows=True,
        tensors=LLAMA_TENSORS,
        defaults=frozen(
            max_position_embeddings=262_144,
            rms_norm_eps=1e-5,
            num_key_value_heads=8,
            head_dim=128,
            rope_theta=1e6,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "CwmForCausalLM": Architecture(
        name="cwm",
        model_type="cwm",
        overrides=_cwm,
        windowed=True,
        tensors=LLAMA_TENSORS,
        defaults=frozen(
            max_position_embeddings=131_072,
            rms_norm_eps=1e-5,
            num_key_value_heads=8,
            head_dim=128,
            sliding_window=8192,
            rope_theta=1e6,
            bos_token_id=128_000,
            eos_token_id=[128_001, 128_008, 128_009],
        ),
    ),
    "HunYuanDenseV1ForCausalLM": Architecture(
        name="hunyuan_v1_dense",
        model_type="hunyuan_v1_dense",
        overrides=hunyuan,
        tensors=llama_tensors(_HUNYUAN_NORMS),
        defaults=frozen(
            max_position_embeddings=2048, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2
        ),
    ),
    "Exaone4ForCausalLM": Architecture(
        name="exaone4",
        model_type="exaone4",
        overrides=_exaone4,
        windowed=True,
        tensors=llama_tensors(OUTPUT_NORMS),
        defaults=frozen(
            max_position_embeddings=2048,
            rms_norm_eps=1e-5,
            num_key_value_heads=32,
            sliding_window=4096,
            sliding_window_pattern=4,
            bos_token_id=0,
            eos_token_id=2,
        ),
    ),
    "OlmoForCausalLM": Architecture(
        name="olmo",
        model_type="olmo",
        overrides=_olmo,
        supported_keys=frozenset({"clip_qkv"}),
        tensors=LLAMA_TENSORS,
        defaults=frozen(max_position_embeddings=2048, eos_token_id=50_279),
    ),
    "Olmo3ForCausalLM": Architecture(
        name="olmo3",
        model_type="olmo3",
        overrides=_olmo3,
        windowed=True,
        tensors=llama_tensors(OUTPUT_NORMS),
        defaults=frozen(
            max_position_embeddings=2048,
            rms_norm_eps=1e-5,
            sliding_window=4096,
            rope_theta=5e5,
            eos_token_id=50_279,
        ),
    ),
}
