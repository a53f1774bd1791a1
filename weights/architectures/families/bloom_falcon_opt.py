"""BLOOM, Falcon and OPT: LayerNorm, an MLP without a gate, ALiBi or learned positions.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.families.gpt import NEOX_LAYER, mlp_width
from swiftchat.weights.architectures.parts.architecture import (
    ALL_BIASES,
    LAYER_NORM_UNGATED,
    Architecture,
    frozen,
    tensor_names,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_CONTEXT,
    MAX_WIDTH,
    Fields,
    flag,
    hidden_size,
    integer,
    invalid,
    num_heads,
)

# The norm before an MLP is named "final".
_OPT_LAYER = {
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "o": "self_attn.out_proj.weight",
    "o_bias": "self_attn.out_proj.bias",
    "up": "fc1.weight",
    "up_bias": "fc1.bias",
    "down": "fc2.weight",
    "down_bias": "fc2.bias",
    "attn_norm": "self_attn_layer_norm.weight",
    "attn_norm_bias": "self_attn_layer_norm.bias",
    "mlp_norm": "final_layer_norm.weight",
    "mlp_norm_bias": "final_layer_norm.bias",
}

_OPT_POSITION_OFFSET = 2
_BLOOM_LAYER = {
    name: rest.replace("attention.", "self_attention.") if rest.startswith("attention.") else rest
    for name, rest in NEOX_LAYER.items()
}


def _bloom(config: Fields) -> Mapping[str, Any]:
    return {
        **LAYER_NORM_UNGATED,
        **ALL_BIASES,
        "activation": "gelu_tanh",
        "num_kv_heads": num_heads(config),
        "intermediate_size": mlp_width(config, None),
        "embedding_norm": True,
        "rope": None,
        "alibi": True,
    }


def _falcon(config: Fields) -> Mapping[str, Any]:
    heads, bias = num_heads(config), flag(config, "bias")
    grouped = flag(config, "new_decoder_architecture")
    if grouped:
        kv_heads = integer({"num_kv_heads": heads, **config}, "num_kv_heads", 1, heads)
        if heads % kv_heads:
            raise invalid("num_kv_heads", f"a divisor of {heads} heads", kv_heads)
    else:
        kv_heads = 1 if flag(config, "multi_query") else heads
    norms = config.get("num_ln_in_parallel_attn")
    norms = (2 if grouped else 1) if norms is None else norms
    if norms not in (1, 2):
        raise invalid("num_ln_in_parallel_attn", "1 or 2", norms)
    parallel = grouped or flag(config, "parallel_attn")
    if grouped and not flag(config, "parallel_attn"):
        raise invalid("parallel_attn", "true with new_decoder_architecture", False)
    hidden, alibi = hidden_size(config), flag(config, "alibi")
    return {
        **LAYER_NORM_UNGATED,
        **({"rope": None} if alibi else {}),
        "alibi": alibi,
        # Falcon adds the bias before it scales the scores.
        "alibi_scale": (hidden / heads) ** -0.5 if alibi else 1.0,
        "attention_bias": bias,
        "output_bias": bias,
        "mlp_bias": bias,
        "num_kv_heads": kv_heads,
        "intermediate_size": mlp_width(config, "ffn_hidden_size"),
        "parallel_residual": parallel,
        "shared_norm": parallel and not (grouped and norms == 2),
    }


def _opt(config: Fields) -> Mapping[str, Any]:
    if not flag(config, "layer_norm_elementwise_affine"):
        raise invalid("layer_norm_elementwise_affine", "true", False)
    hidden = hidden_size(config)
    width = integer(config, "word_embed_proj_dim", 1, MAX_WIDTH)
    before, bias = flag(config, "do_layer_norm_before"), flag(config, "enable_bias")
    positions = integer(config, "max_position_embeddings", 1, MAX_CONTEXT)
    return {
        **LAYER_NORM_UNGATED,
        "attention_bias": bias,
        "output_bias": bias,
        "mlp_bias": bias,
        "num_kv_heads": num_heads(config),
        "norm_eps": 1e-5,
        "norm_order": "pre" if before else "post",
        "final_norm": before and not flag(config, "_remove_final_layer_norm"),
        "rope": None,
        "learned_positions": positions + _OPT_POSITION_OFFSET,
        "position_offset": _OPT_POSITION_OFFSET,
        "embedding_size": None if width == hidden else width,
    }


BLOOM_FALCON_OPT: Mapping[str, Architecture] = {
    "BloomForCausalLM": Architecture(
        name="bloom",
        model_type="bloom",
        overrides=_bloom,
        rejected_keys=frozenset({"apply_residual_connection_post_layernorm"}),
        prefix="transformer.",
        qkv_in_groups=True,
        renamed=frozen(
            hidden_size="n_embed",
            num_hidden_layers="n_layer",
            num_attention_heads="n_head",
            max_position_embeddings="seq_length",
            rms_norm_eps="layer_norm_epsilon",
        ),
        tensors=tensor_names(
            _BLOOM_LAYER,
            embed="transformer.word_embeddings.weight",
            embed_norm="transformer.word_embeddings_layernorm.weight",
            embed_norm_bias="transformer.word_embeddings_layernorm.bias",
            final_norm="transformer.ln_f.weight",
            final_norm_bias="transformer.ln_f.bias",
            lm_head="lm_head.weight",
            layer="transformer.h.{i}.",
        ),
        defaults=frozen(
            max_position_embeddings=2048,
            layer_norm_epsilon=1e-5,
            tie_word_embeddings=True,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "FalconForCausalLM": Architecture(
        name="falcon",
        model_type="falcon",
        overrides=_falcon,
        prefix="transformer.",
        qkv_in_groups=True,
        supported_keys=frozenset({"parallel_attn", "alibi"}),
        renamed=frozen(
            hidden_size="n_embed",
            num_hidden_layers="n_layer",
            num_attention_heads="n_head",
            num_kv_heads="n_head_kv",
            rms_norm_eps="layer_norm_epsilon",
            hidden_act="activation",
        ),
        tensors=tensor_names(
            _BLOOM_LAYER,
            embed="transformer.word_embeddings.weight",
            final_norm="transformer.ln_f.weight",
            final_norm_bias="transformer.ln_f.bias",
            lm_head="lm_head.weight",
            layer="transformer.h.{i}.",
        ),
        separate_norm_tensors=tensor_names(
            {
                "attn_norm": "ln_attn.weight",
                "attn_norm_bias": "ln_attn.bias",
                "mlp_norm": "ln_mlp.weight",
                "mlp_norm_bias": "ln_mlp.bias",
            },
            layer="transformer.h.{i}.",
        ),
        defaults=frozen(
            max_position_embeddings=2048,
            layer_norm_epsilon=1e-5,
            activation="gelu",
            multi_query=True,
            parallel_attn=True,
            tie_word_embeddings=True,
            bos_token_id=11,
            eos_token_id=11,
        ),
    ),
    "OPTForCausalLM": Architecture(
        name="opt",
        model_type="opt",
        overrides=_opt,
        prefix="model.",
        renamed=frozen(intermediate_size="ffn_dim", hidden_act="activation_function"),
        tensors=tensor_names(
            _OPT_LAYER,
            embed="model.decoder.embed_tokens.weight",
            positions="model.decoder.embed_positions.weight",
            project_in="model.decoder.project_in.weight",
            project_out="model.decoder.project_out.weight",
            final_norm="model.decoder.final_layer_norm.weight",
            final_norm_bias="model.decoder.final_layer_norm.bias",
            lm_head="lm_head.weight",
            layer="model.decoder.layers.{i}.",
        ),
        defaults=frozen(
            max_position_embeddings=2048,
            ffn_dim=3072,
            activation_function="relu",
            do_layer_norm_before=True,
            enable_bias=True,
            layer_norm_elementwise_affine=True,
            word_embed_proj_dim=768,
            tie_word_embeddings=True,
            bos_token_id=2,
            eos_token_id=2,
        ),
    ),
}
