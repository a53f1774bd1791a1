"""OpenAI: GPT-2 and GPT-OSS.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    ALL_BIASES,
    LAYER_NORM_UNGATED,
    SEPARATE_GATE_UP,
    Architecture,
    frozen,
    llama_tensors,
    tensor_names,
)
from swiftchat.weights.architectures.parts.expert_readers import moe_overrides
from swiftchat.weights.architectures.parts.fields import (
    MAX_CONTEXT,
    MAX_HEAD_DIM,
    Fields,
    flag,
    integer,
    invalid,
    num_heads,
    num_layers,
    number,
)
from swiftchat.weights.architectures.parts.gpt_readers import GPT_KEYS, mlp_width
from swiftchat.weights.architectures.parts.rope import (
    RopeConfig,
)


def _gpt2(config: Fields) -> Mapping[str, Any]:
    scaled = flag(config, "scale_attn_weights")
    return {
        **LAYER_NORM_UNGATED,
        **ALL_BIASES,
        "num_kv_heads": num_heads(config),
        "intermediate_size": mlp_width(config, "n_inner"),
        "rope": None,
        "learned_positions": integer(config, "max_position_embeddings", 1, MAX_CONTEXT),
        "query_scalar": None if scaled else 1.0,
    }


def _gpt_oss(config: Fields) -> Mapping[str, Any]:
    head_dim = integer(config, "head_dim", 2, MAX_HEAD_DIM)
    if config.get("rope_parameters") is None:
        config = {**config, "rope_parameters": _GPT_OSS_ROPE}
    # The activation of the experts depends on it, not on `hidden_act`.
    alpha = number(config, "swiglu_alpha", above=0.0, below=1e3)
    if alpha != 1.702:
        raise invalid("swiglu_alpha", "1.702", alpha)
    kinds = ["full_attention" if i % 2 else "sliding_attention" for i in range(num_layers(config))]
    return {
        **moe_overrides(config),
        "attention_bias": flag(config, "attention_bias"),
        "attention_sinks": True,
        "expert_bias": True,
        "activation": "gelu_sigmoid",
        "interleaved_gate": True,
        "rope": RopeConfig.from_hf(config, head_dim),
        "gate_limit": number(config, "swiglu_limit", above=0.0, below=1e6),
        "layer_types": kinds,
    }


# The layers of GPT-2; other models use the same names.
GPT_LAYER = {
    "qkv": "attn.c_attn.weight",
    "qkv_bias": "attn.c_attn.bias",
    "o": "attn.c_proj.weight",
    "o_bias": "attn.c_proj.bias",
    "up": "mlp.c_fc.weight",
    "up_bias": "mlp.c_fc.bias",
    "down": "mlp.c_proj.weight",
    "down_bias": "mlp.c_proj.bias",
    "attn_norm": "ln_1.weight",
    "attn_norm_bias": "ln_1.bias",
    "mlp_norm": "ln_2.weight",
    "mlp_norm_bias": "ln_2.bias",
}

_GPT_OSS_ROPE = frozen(
    rope_type="yarn",
    factor=32.0,
    beta_fast=32.0,
    beta_slow=1.0,
    truncate=False,
    original_max_position_embeddings=4096,
)


OPENAI: Mapping[str, Architecture] = {
    "GPT2LMHeadModel": Architecture(
        name="gpt2",
        model_type="gpt2",
        overrides=_gpt2,
        renamed=GPT_KEYS,
        rejected_keys=frozenset({"scale_attn_by_inverse_layer_idx", "add_cross_attention"}),
        prefix="transformer.",
        transposed=frozenset({"qkv", "o", "up", "down"}),
        tensors=tensor_names(
            GPT_LAYER,
            embed="transformer.wte.weight",
            positions="transformer.wpe.weight",
            final_norm="transformer.ln_f.weight",
            final_norm_bias="transformer.ln_f.bias",
            lm_head="lm_head.weight",
            layer="transformer.h.{i}.",
        ),
        defaults=frozen(
            n_positions=1024,
            layer_norm_epsilon=1e-5,
            activation_function="gelu_new",
            scale_attn_weights=True,
            tie_word_embeddings=True,
            bos_token_id=50_256,
            eos_token_id=50_256,
        ),
    ),
    "GptOssForCausalLM": Architecture(
        name="gpt_oss",
        model_type="gpt_oss",
        windowed=True,
        overrides=_gpt_oss,
        supported_keys=frozenset({"num_local_experts"}),
        tensors=llama_tensors(
            {
                "sinks": "self_attn.sinks",
                "router": "mlp.router.weight",
                "router_bias": "mlp.router.bias",
                "experts_gate_up": "mlp.experts.gate_up_proj",
                "experts_gate_up_bias": "mlp.experts.gate_up_proj_bias",
                "experts_down": "mlp.experts.down_proj",
                "experts_down_bias": "mlp.experts.down_proj_bias",
            },
            without=(*SEPARATE_GATE_UP, "down"),
        ),
        transposed=frozenset({"experts_gate_up", "experts_down"}),
        defaults=frozen(
            max_position_embeddings=131_072,
            rms_norm_eps=1e-5,
            num_key_value_heads=8,
            head_dim=64,
            sliding_window=128,
            attention_bias=True,
            num_local_experts=128,
            num_experts_per_tok=4,
            swiglu_alpha=1.702,
            swiglu_limit=7.0,
            rope_theta=150_000.0,
        ),
    ),
}
