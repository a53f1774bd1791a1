"""GPT-2, GPT-J, GPT-NeoX and StarCoder2: LayerNorm and an MLP without a gate.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    ALL_BIASES,
    LAYER_NORM_UNGATED,
    Architecture,
    frozen,
    llama_tensors,
    tensor_names,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_CONTEXT,
    MAX_WIDTH,
    Fields,
    flag,
    hidden_size,
    integer,
    num_heads,
    optional_integer,
)
from swiftchat.weights.architectures.parts.rope import RopeConfig

# The layers of GPT-NeoX; Falcon, BLOOM and ChatGLM-6B use the same names.
NEOX_LAYER = {
    "qkv": "attention.query_key_value.weight",
    "qkv_bias": "attention.query_key_value.bias",
    "o": "attention.dense.weight",
    "o_bias": "attention.dense.bias",
    "up": "mlp.dense_h_to_4h.weight",
    "up_bias": "mlp.dense_h_to_4h.bias",
    "down": "mlp.dense_4h_to_h.weight",
    "down_bias": "mlp.dense_4h_to_h.bias",
    "attn_norm": "input_layernorm.weight",
    "attn_norm_bias": "input_layernorm.bias",
    "mlp_norm": "post_attention_layernorm.weight",
    "mlp_norm_bias": "post_attention_layernorm.bias",
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
GPT_KEYS = frozen(
    hidden_size="n_embd",
    num_hidden_layers="n_layer",
    num_attention_heads="n_head",
    max_position_embeddings="n_positions",
    intermediate_size="n_inner",
    rms_norm_eps="layer_norm_epsilon",
    hidden_act="activation_function",
)


def mlp_width(config: Fields, name: str | None) -> int:
    """Read the MLP's width from the field `name`; four times the hidden size if absent."""
    if name is not None and config.get(name) is not None:
        return integer(config, name, 1, MAX_WIDTH)
    return 4 * integer(config, "hidden_size", 1, MAX_WIDTH // 4)


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


def _gpt_j(config: Fields) -> Mapping[str, Any]:
    head_dim = hidden_size(config) // num_heads(config)
    return {
        **LAYER_NORM_UNGATED,
        "attention_bias": False,
        "output_bias": False,
        "mlp_bias": True,
        "lm_head_bias": True,
        "num_kv_heads": num_heads(config),
        "intermediate_size": mlp_width(config, "n_inner"),
        # The base is fixed, and there is no scaling.
        "rope": RopeConfig(
            rotary_dim=optional_integer(config, "rotary_dim", 2, head_dim), interleaved=True
        ),
        "parallel_residual": True,
        "shared_norm": True,
    }


def _gpt_neox(config: Fields) -> Mapping[str, Any]:
    heads = num_heads(config)
    head_dim = integer(config, "hidden_size", heads, MAX_WIDTH) // heads
    return {
        **LAYER_NORM_UNGATED,
        "mlp_bias": True,
        "num_kv_heads": heads,
        "parallel_residual": flag(config, "use_parallel_residual"),
        "rope": RopeConfig.from_hf(config, head_dim),
    }


def _starcoder2(config: Fields) -> Mapping[str, Any]:
    bias = flag(config, "use_bias")
    return {**LAYER_NORM_UNGATED, "attention_bias": bias, "output_bias": bias, "mlp_bias": bias}


GPT: Mapping[str, Architecture] = {
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
    "GPTJForCausalLM": Architecture(
        name="gptj",
        model_type="gptj",
        overrides=_gpt_j,
        renamed=GPT_KEYS,
        prefix="transformer.",
        interleaved_rope=True,
        supported_keys=frozenset({"rotary_dim"}),
        tensors=tensor_names(
            {
                "q": "attn.q_proj.weight",
                "k": "attn.k_proj.weight",
                "v": "attn.v_proj.weight",
                "o": "attn.out_proj.weight",
                "up": "mlp.fc_in.weight",
                "up_bias": "mlp.fc_in.bias",
                "down": "mlp.fc_out.weight",
                "down_bias": "mlp.fc_out.bias",
                "attn_norm": "ln_1.weight",
                "attn_norm_bias": "ln_1.bias",
            },
            layer="transformer.h.{i}.",
            embed="transformer.wte.weight",
            final_norm="transformer.ln_f.weight",
            final_norm_bias="transformer.ln_f.bias",
            lm_head="lm_head.weight",
            lm_head_bias="lm_head.bias",
        ),
        defaults=frozen(
            n_positions=2048,
            rotary_dim=64,
            layer_norm_epsilon=1e-5,
            activation_function="gelu_new",
            bos_token_id=50_256,
            eos_token_id=50_256,
        ),
    ),
    "GPTNeoXForCausalLM": Architecture(
        name="gpt_neox",
        model_type="gpt_neox",
        overrides=_gpt_neox,
        qkv_in_groups=True,
        renamed=frozen(
            rms_norm_eps="layer_norm_eps",
            partial_rotary_factor="rotary_pct",
            rope_theta="rotary_emb_base",
        ),
        supported_keys=frozenset({"use_parallel_residual", "partial_rotary_factor"}),
        tensors=tensor_names(
            NEOX_LAYER,
            embed="gpt_neox.embed_in.weight",
            final_norm="gpt_neox.final_layer_norm.weight",
            final_norm_bias="gpt_neox.final_layer_norm.bias",
            lm_head="embed_out.weight",
            layer="gpt_neox.layers.{i}.",
        ),
        defaults=frozen(
            max_position_embeddings=2048,
            layer_norm_eps=1e-5,
            hidden_act="gelu",
            partial_rotary_factor=0.25,
            attention_bias=True,
            use_parallel_residual=True,
            bos_token_id=0,
            eos_token_id=2,
        ),
    ),
    "Starcoder2ForCausalLM": Architecture(
        name="starcoder2",
        model_type="starcoder2",
        windowed=True,
        same_windows=True,
        overrides=_starcoder2,
        renamed=frozen(rms_norm_eps="norm_epsilon"),
        tensors=llama_tensors(
            {
                "up": "mlp.c_fc.weight",
                "up_bias": "mlp.c_fc.bias",
                "down": "mlp.c_proj.weight",
                "down_bias": "mlp.c_proj.bias",
            },
            without=("gate", "gate_bias", "q_norm", "k_norm"),
        ),
        defaults=frozen(
            max_position_embeddings=4096,
            norm_epsilon=1e-5,
            num_key_value_heads=2,
            hidden_act="gelu_pytorch_tanh",
            use_bias=True,
            tie_word_embeddings=True,
            bos_token_id=50_256,
            eos_token_id=50_256,
        ),
    ),
}
