"""Vendors with one dense model.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from swiftchat.weights.architectures.families.ibm import (
    GRANITE_DEFAULTS,
    MULTIPLIERS,
    granite,
    multiplier,
)
from swiftchat.weights.architectures.parts.architecture import (
    LLAMA_TENSORS,
    SEPARATE_GATE_UP,
    Architecture,
    frozen,
    llama_tensors,
    tensor_names,
)
from swiftchat.weights.architectures.parts.fields import (
    Fields,
    flag,
    integer,
    invalid,
    num_layers,
    optional_number,
)
from swiftchat.weights.architectures.parts.layer_readers import UNGATED, head_dim_of, layer_norms
from swiftchat.weights.architectures.parts.rope import RopeConfig
from swiftchat.weights.architectures.parts.variants import TypeVariant


def _nanochat(config: Fields) -> Mapping[str, Any]:
    head_dim = head_dim_of(config)
    return {
        "gated": False,
        "mlp_bias": False,
        "norm_weights": False,
        "embedding_norm": True,
        "qk_norm": "head",
        "qk_norm_weights": False,
        "qk_norm_after_rope": True,
        "rope": replace(RopeConfig.from_hf(config, head_dim), reversed=True),
        "logit_softcap": optional_number(config, "final_logit_softcapping", above=0.0, below=1e6),
    }


def _hyperclovax(config: Fields) -> Mapping[str, Any]:
    overrides = {
        **granite(config),
        "logit_scale": multiplier(config, "logits_scaling"),
        "norm_order": "sandwich" if flag(config, "use_post_norm") else "pre",
    }
    if config.get("attention_multiplier") is None:
        overrides["query_scalar"] = None
    if overrides["norm_order"] == "sandwich" and overrides["residual_scale"] != 1.0:
        # The norms of branches would need an epsilon of their own.
        raise invalid("residual_multiplier", "1 with use_post_norm", overrides["residual_scale"])
    return overrides


def _smollm3(config: Fields) -> Mapping[str, Any]:
    count = num_layers(config)
    rotated = config.get("no_rope_layers")
    if rotated is None:
        interval = integer(config, "no_rope_layer_interval", 1, 2**30)
        rotated = [int((i + 1) % interval != 0) for i in range(count)]
    if not isinstance(rotated, list) or len(rotated) != count:
        raise invalid("no_rope_layers", f"a list of {count} numbers", rotated)
    # Despite its name, the list has 1 for layers with rotary embeddings.
    rotated = [integer({"no_rope_layers": each}, "no_rope_layers", 0, 1) for each in rotated]
    windowed = flag(config, "use_sliding_window") and config.get("sliding_window") is not None
    kinds = ["full_attention" if each else "sliding_attention" for each in rotated]
    return {
        "unrotated_layers": frozenset(i for i, each in enumerate(rotated) if not each),
        "layer_types": kinds if windowed else None,
    }


def _internlm2(config: Fields) -> Mapping[str, Any]:
    return {"attention_bias": flag(config, "bias"), "mlp_bias": False}


def _stablelm(config: Fields) -> Mapping[str, Any]:
    parallel = flag(config, "use_parallel_residual")
    return {
        "norm": "layer",
        "norm_bias": True,
        "parallel_residual": parallel,
        "shared_norm": parallel,
        "qk_norm": "heads" if flag(config, "qk_layernorm") else None,
        "attention_bias": flag(config, "use_qkv_bias"),
        "output_bias": False,
        "mlp_bias": False,
    }


def _seed_oss(config: Fields) -> Mapping[str, Any]:
    return {"output_bias": flag(config, "attention_out_bias")}


def _no_output_bias(config: Fields) -> Mapping[str, Any]:
    return {"output_bias": False}


OTHERS: Mapping[str, Architecture] = {
    "NanoChatForCausalLM": Architecture(
        name="nanochat",
        model_type="nanochat",
        overrides=_nanochat,
        supported_keys=frozenset({"final_logit_softcapping"}),
        tensors=llama_tensors(
            {"up": "mlp.fc1.weight", "down": "mlp.fc2.weight"}, without=(*SEPARATE_GATE_UP, "down")
        ),
        defaults=frozen(
            max_position_embeddings=2048,
            rms_norm_eps=1e-6,
            hidden_act="relu2",
            final_logit_softcapping=15.0,
            bos_token_id=0,
            eos_token_id=1,
        ),
    ),
    "HyperCLOVAXForCausalLM": Architecture(
        name="hyperclovax",
        model_type="hyperclovax",
        overrides=_hyperclovax,
        supported_keys=MULTIPLIERS,
        tensors=llama_tensors(
            {"attn_out_norm": "post_norm1.weight", "mlp_out_norm": "post_norm2.weight"}
        ),
        defaults=frozen(**GRANITE_DEFAULTS, use_post_norm=True),
    ),
    "SmolLM3ForCausalLM": Architecture(
        name="smollm3",
        model_type="smollm3",
        windowed=True,
        tensors=LLAMA_TENSORS,
        overrides=_smollm3,
        supported_keys=frozenset({"no_rope_layers"}),
        defaults=frozen(
            max_position_embeddings=32768,
            rms_norm_eps=1e-6,
            num_key_value_heads=4,
            rope_theta=2e6,
            use_sliding_window=False,
            no_rope_layer_interval=4,
            tie_word_embeddings=True,
            bos_token_id=128_000,
            eos_token_id=128_001,
        ),
    ),
    "InternLM2ForCausalLM": Architecture(
        name="internlm2",
        model_type="internlm2",
        overrides=_internlm2,
        qkv_in_groups=True,
        tensors=tensor_names(
            {
                "qkv": "attention.wqkv.weight",
                "qkv_bias": "attention.wqkv.bias",
                "o": "attention.wo.weight",
                "o_bias": "attention.wo.bias",
                "gate": "feed_forward.w1.weight",
                "up": "feed_forward.w3.weight",
                "down": "feed_forward.w2.weight",
                "attn_norm": "attention_norm.weight",
                "mlp_norm": "ffn_norm.weight",
            },
            embed="model.tok_embeddings.weight",
            final_norm="model.norm.weight",
            lm_head="output.weight",
            layer="model.layers.{i}.",
        ),
        defaults=frozen(
            max_position_embeddings=2048,
            rms_norm_eps=1e-6,
            bias=True,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "StableLmForCausalLM": Architecture(
        name="stablelm",
        model_type="stablelm",
        overrides=_stablelm,
        tensors=llama_tensors(
            {
                "q_norm": "self_attn.q_layernorm.norms.{h}.weight",
                "k_norm": "self_attn.k_layernorm.norms.{h}.weight",
            }
        ),
        renamed=frozen(rms_norm_eps="layer_norm_eps"),
        supported_keys=frozenset(
            {"partial_rotary_factor", "use_parallel_residual", "qk_layernorm"}
        ),
        defaults=frozen(
            max_position_embeddings=4096,
            layer_norm_eps=1e-5,
            num_key_value_heads=32,
            partial_rotary_factor=0.25,
            bos_token_id=0,
            eos_token_id=0,
        ),
    ),
    "Jais2ForCausalLM": Architecture(
        name="jais2",
        model_type="jais2",
        overrides=layer_norms,
        tensors=UNGATED,
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
}

OTHERS_VARIANTS = (
    TypeVariant(
        "LlamaForCausalLM",
        "internlm3",
        renamed=frozen(attention_bias="qkv_bias", mlp_bias="bias"),
        defaults=frozen(max_position_embeddings=32_768, rms_norm_eps=1e-5, num_key_value_heads=2),
    ),
    TypeVariant(
        "LlamaForCausalLM",
        "iquestcoder",
        defaults=frozen(max_position_embeddings=131_072, rms_norm_eps=1e-5, num_key_value_heads=8),
    ),
)
