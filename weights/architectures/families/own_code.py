"""Models whose code is published with their files: MiniCPM, EXAONE 3 and Ling 2.0.

Transformers lacks their classes. Each computes what a class of transformers does, with other names.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.families.deepseek import minicpm_multipliers
from swiftchat.weights.architectures.families.moe import MOE_KEYS, SHARED_EXPERTS
from swiftchat.weights.architectures.families.qwen import EXPERTS
from swiftchat.weights.architectures.families.sigmoid_routers import glm4_moe
from swiftchat.weights.architectures.parts.architecture import (
    LLAMA_TENSORS,
    Architecture,
    frozen,
    tensor_names,
)
from swiftchat.weights.architectures.parts.fields import Fields, flag, invalid


def _minicpm(config: Fields) -> Mapping[str, Any]:
    # Sparse attention of long contexts (`sparse_config`) is computed as full attention.
    return {
        "attention_bias": flag(config, "attention_bias"),
        "mlp_bias": False,
        **minicpm_multipliers(config),
    }


def _exaone(config: Fields) -> Mapping[str, Any]:
    return {"attention_bias": False, "mlp_bias": False}


def _bailing_moe_v2(config: Fields) -> Mapping[str, Any]:
    for name in ("use_bias", "use_qkv_bias", "norm_head"):
        if flag(config, name):
            raise invalid(name, "false", True)
    if config.get("score_function", "sigmoid") != "sigmoid":
        raise invalid("score_function", "sigmoid", config["score_function"])
    return {**glm4_moe(config), "attention_bias": False}


OWN_CODE: Mapping[str, Architecture] = {
    "MiniCPMForCausalLM": Architecture(
        name="minicpm",
        model_type="minicpm",
        overrides=_minicpm,
        tensors=LLAMA_TENSORS,
        defaults=frozen(
            max_position_embeddings=2048,
            rms_norm_eps=1e-6,
            tie_word_embeddings=True,
            scale_emb=1,
            scale_depth=1,
            dim_model_base=1,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "ExaoneForCausalLM": Architecture(
        name="exaone",
        model_type="exaone",
        overrides=_exaone,
        renamed=frozen(
            num_hidden_layers="num_layers",
            rms_norm_eps="layer_norm_epsilon",
            hidden_act="activation_function",
        ),
        prefix="transformer.",
        tensors=tensor_names(
            {
                "q": "attn.attention.q_proj.weight",
                "k": "attn.attention.k_proj.weight",
                "v": "attn.attention.v_proj.weight",
                "o": "attn.attention.out_proj.weight",
                "gate": "mlp.c_fc_0.weight",
                "up": "mlp.c_fc_1.weight",
                "down": "mlp.c_proj.weight",
                "attn_norm": "ln_1.weight",
                "mlp_norm": "ln_2.weight",
            },
            embed="transformer.wte.weight",
            final_norm="transformer.ln_f.weight",
            lm_head="lm_head.weight",
            layer="transformer.h.{i}.",
        ),
        defaults=frozen(
            max_position_embeddings=2048,
            layer_norm_epsilon=1e-6,
            activation_function="silu",
            bos_token_id=0,
            eos_token_id=2,
        ),
    ),
    "BailingMoeV2ForCausalLM": Architecture(
        name="bailing_moe_v2",
        model_type="bailing_moe",
        overrides=_bailing_moe_v2,
        supported_keys=MOE_KEYS | {"partial_rotary_factor", "use_qk_norm"},
        renamed=frozen(num_local_experts="num_experts", n_shared_experts="num_shared_experts"),
        tensors=tensor_names(
            {
                **EXPERTS,
                **SHARED_EXPERTS,
                "router_correction": "mlp.gate.expert_bias",
                "qkv": "attention.query_key_value.weight",
                "q_norm": "attention.query_layernorm.weight",
                "k_norm": "attention.key_layernorm.weight",
                "o": "attention.dense.weight",
                "gate": "mlp.gate_proj.weight",
                "up": "mlp.up_proj.weight",
                "down": "mlp.down_proj.weight",
                "attn_norm": "input_layernorm.weight",
                "mlp_norm": "post_attention_layernorm.weight",
            },
            embed="model.word_embeddings.weight",
            final_norm="model.norm.weight",
            lm_head="lm_head.weight",
            layer="model.layers.{i}.",
        ),
        defaults=frozen(
            max_position_embeddings=32_768,
            rms_norm_eps=1e-6,
            head_dim=128,
            rope_theta=6e5,
            partial_rotary_factor=0.5,
            use_qk_norm=True,
            moe_intermediate_size=512,
            num_local_experts=256,
            num_experts_per_tok=8,
            n_shared_experts=1,
            n_group=8,
            topk_group=4,
            first_k_dense_replace=1,
            norm_topk_prob=True,
            routed_scaling_factor=2.5,
        ),
    ),
}
