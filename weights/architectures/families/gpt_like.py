"""GPT (2018), GPT-Neo, GPT-BigCode (StarCoder), MPT and BioGPT.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.families.bloom_falcon_opt import OPT_LAYER
from swiftchat.weights.architectures.families.gpt import GPT_KEYS, GPT_LAYER, mlp_width
from swiftchat.weights.architectures.parts.architecture import (
    ALL_BIASES,
    LAYER_NORM_UNGATED,
    Architecture,
    frozen,
    tensor_names,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_CONTEXT,
    Fields,
    flag,
    hidden_size,
    integer,
    invalid,
    mapping,
    num_heads,
    num_layers,
    optional_number,
)

_BIOGPT_OFFSET = 2


def _positions(config: Fields) -> dict[str, Any]:
    """Return the fields of models with LayerNorm, learned positions and as many KV heads."""
    return {
        **LAYER_NORM_UNGATED,
        **ALL_BIASES,
        "num_kv_heads": num_heads(config),
        "rope": None,
        "learned_positions": integer(config, "max_position_embeddings", 1, MAX_CONTEXT),
    }


def _openai_gpt(config: Fields) -> Mapping[str, Any]:
    # Its "gelu" is the approximation by tanh.
    approximate = config.get("hidden_act") == "gelu"
    return {
        **_positions(config),
        **({"activation": "gelu_tanh"} if approximate else {}),
        "intermediate_size": mlp_width(config, None),
        "norm_order": "post",
        "final_norm": False,
    }


def _gpt_neo(config: Fields) -> Mapping[str, Any]:
    kinds, count = config.get("attention_layers"), num_layers(config)
    if (
        not isinstance(kinds, list)
        or len(kinds) < count
        or {*map(str, kinds)} - {"global", "local"}
    ):
        raise invalid("attention_layers", f"a list of {count} names, global or local", kinds)
    return {
        **_positions(config),
        "attention_bias": False,
        "intermediate_size": mlp_width(config, "intermediate_size"),
        "query_scalar": 1.0,
        "layer_types": [
            "full_attention" if kind == "global" else "sliding_attention" for kind in kinds[:count]
        ],
    }


def _gpt_bigcode(config: Fields) -> Mapping[str, Any]:
    return {
        **_positions(config),
        "num_kv_heads": 1 if flag(config, "multi_query") else num_heads(config),
        "intermediate_size": mlp_width(config, "n_inner"),
        "query_scalar": None if flag(config, "scale_attn_weights") else 1.0,
    }


def _mpt(config: Fields) -> Mapping[str, Any]:
    attention = mapping(config, "attn_config") or {}
    scale = optional_number(attention, "softmax_scale", above=0.0, below=1e6)
    return {
        **LAYER_NORM_UNGATED,
        "norm_bias": False,
        "attention_bias": False,
        "output_bias": False,
        "mlp_bias": False,
        "activation": "gelu",
        "num_kv_heads": num_heads(config),
        "intermediate_size": mlp_width(config, None),
        "rope": None,
        "alibi": True,
        "query_scalar": None if scale is None else scale**-2,
        "clip_qkv": optional_number(attention, "clip_qkv", above=0.0, below=1e6),
    }


def _biogpt(config: Fields) -> Mapping[str, Any]:
    positions = _positions(config)
    return {
        **positions,
        "norm_eps": 1e-5,
        "learned_positions": positions["learned_positions"] + _BIOGPT_OFFSET,
        "position_offset": _BIOGPT_OFFSET,
        "embedding_scale": hidden_size(config) ** 0.5 if flag(config, "scale_embedding") else 1.0,
    }


_OUTSIDE = frozen(
    embed="transformer.wte.weight",
    positions="transformer.wpe.weight",
    final_norm="transformer.ln_f.weight",
    final_norm_bias="transformer.ln_f.bias",
    lm_head="lm_head.weight",
)

GPT_LIKE: Mapping[str, Architecture] = {
    "OpenAIGPTLMHeadModel": Architecture(
        name="openai-gpt",
        model_type="openai-gpt",
        overrides=_openai_gpt,
        renamed=frozen(**{**GPT_KEYS, "hidden_act": "afn"}),
        prefix="transformer.",
        transposed=frozenset({"qkv", "o", "up", "down"}),
        tensors=tensor_names(
            GPT_LAYER,
            embed="transformer.tokens_embed.weight",
            positions="transformer.positions_embed.weight",
            lm_head="lm_head.weight",
            layer="transformer.h.{i}.",
        ),
        defaults=frozen(
            n_positions=512, layer_norm_epsilon=1e-5, afn="gelu", tie_word_embeddings=True
        ),
    ),
    "GPTNeoForCausalLM": Architecture(
        name="gpt_neo",
        model_type="gpt_neo",
        overrides=_gpt_neo,
        windowed=True,
        same_windows=True,
        supported_keys=frozenset({"sliding_window"}),
        renamed=frozen(
            num_hidden_layers="num_layers",
            num_attention_heads="num_heads",
            rms_norm_eps="layer_norm_epsilon",
            hidden_act="activation_function",
            sliding_window="window_size",
        ),
        prefix="transformer.",
        tensors=tensor_names(
            {
                **{k: v for k, v in GPT_LAYER.items() if not k.startswith("qkv")},
                "q": "attn.attention.q_proj.weight",
                "k": "attn.attention.k_proj.weight",
                "v": "attn.attention.v_proj.weight",
                "o": "attn.attention.out_proj.weight",
                "o_bias": "attn.attention.out_proj.bias",
            },
            layer="transformer.h.{i}.",
            **_OUTSIDE,
        ),
        defaults=frozen(
            max_position_embeddings=2048,
            layer_norm_epsilon=1e-5,
            activation_function="gelu_new",
            window_size=256,
            tie_word_embeddings=True,
            bos_token_id=50_256,
            eos_token_id=50_256,
        ),
    ),
    "GPTBigCodeForCausalLM": Architecture(
        name="gpt_bigcode",
        model_type="gpt_bigcode",
        overrides=_gpt_bigcode,
        rejected_keys=frozenset({"add_cross_attention"}),
        qkv_in_groups=True,
        renamed=GPT_KEYS,
        prefix="transformer.",
        tensors=tensor_names(GPT_LAYER, layer="transformer.h.{i}.", **_OUTSIDE),
        defaults=frozen(
            n_positions=1024,
            layer_norm_epsilon=1e-5,
            activation_function="gelu_pytorch_tanh",
            multi_query=True,
            scale_attn_weights=True,
            tie_word_embeddings=True,
            bos_token_id=50_256,
            eos_token_id=50_256,
        ),
    ),
    "MptForCausalLM": Architecture(
        name="mpt",
        model_type="mpt",
        overrides=_mpt,
        renamed=frozen(
            hidden_size="d_model",
            num_hidden_layers="n_layers",
            num_attention_heads="n_heads",
            max_position_embeddings="max_seq_len",
            rms_norm_eps="layer_norm_epsilon",
        ),
        prefix="transformer.",
        tensors=tensor_names(
            {
                "qkv": "attn.Wqkv.weight",
                "o": "attn.out_proj.weight",
                "up": "ffn.up_proj.weight",
                "down": "ffn.down_proj.weight",
                "attn_norm": "norm_1.weight",
                "mlp_norm": "norm_2.weight",
            },
            embed="transformer.wte.weight",
            final_norm="transformer.norm_f.weight",
            lm_head="lm_head.weight",
            layer="transformer.blocks.{i}.",
        ),
        defaults=frozen(max_seq_len=2048, layer_norm_epsilon=1e-5, tie_word_embeddings=True),
    ),
    "BioGptForCausalLM": Architecture(
        name="biogpt",
        model_type="biogpt",
        overrides=_biogpt,
        supported_keys=frozenset({"scale_embedding"}),
        renamed=frozen(rms_norm_eps="layer_norm_eps"),
        prefix="biogpt.",
        tensors=tensor_names(
            OPT_LAYER,
            embed="biogpt.embed_tokens.weight",
            positions="biogpt.embed_positions.weight",
            final_norm="biogpt.layer_norm.weight",
            final_norm_bias="biogpt.layer_norm.bias",
            lm_head="output_projection.weight",
            layer="biogpt.layers.{i}.",
        ),
        defaults=frozen(
            max_position_embeddings=1024,
            layer_norm_eps=1e-12,
            hidden_act="gelu",
            scale_embedding=True,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=2,
        ),
    ),
}
