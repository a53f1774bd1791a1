"""Meta: Llama, OPT, CWM.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    LAYER_NORM_UNGATED,
    LLAMA_TENSORS,
    Architecture,
    frozen,
    llama_tensors,
    tensor_names,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_CONTEXT,
    MAX_EXPERTS,
    MAX_HEAD_DIM,
    MAX_LAYERS,
    MAX_WIDTH,
    Fields,
    flag,
    hidden_size,
    integer,
    invalid,
    layer_types,
    num_heads,
    num_layers,
    number,
)
from swiftchat.weights.architectures.parts.rope import QueryGrowth, RopeConfig
from swiftchat.weights.architectures.parts.router import RouterConfig


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


def _mllama(config: Fields) -> Mapping[str, Any]:
    """Return the fields of Llama 3.2 Vision, whose layers for images do nothing without one."""
    count, listed = num_layers(config), config.get("cross_attention_layers")
    of_images = listed if isinstance(listed, list) and len(listed) <= count else []
    text = tuple(i for i in range(count) if i not in of_images)
    if of_images != listed or not text:
        raise invalid("cross_attention_layers", f"a list of some of {count} layers", str(listed))
    if flag(config, "tie_word_embeddings"):
        raise invalid("tie_word_embeddings", "false", True)
    return {
        "num_layers": len(text),
        "file_layers": text,
        "extra_embeddings": 8,
        "attention_bias": False,
        "mlp_bias": False,
    }


def _llama4(config: Fields) -> Mapping[str, Any]:
    experts, count = integer(config, "num_local_experts", 1, MAX_EXPERTS), num_layers(config)
    width = integer(config, "intermediate_size", 1, MAX_WIDTH)
    unrotated = _unrotated_layers(config)
    kinds = layer_types(config)
    if kinds is None:
        kinds = ["full_attention" if i in unrotated else "chunked_attention" for i in range(count)]
    if len(kinds) != count or {*kinds} - {"full_attention", "chunked_attention"}:
        raise invalid("layer_types", f"{count} times full_attention or chunked_attention", kinds)
    full = frozenset(i for i, kind in enumerate(kinds) if kind == "full_attention")
    is_chunked = len(full) < count
    growth = None
    if flag(config, "attn_temperature_tuning"):
        growth = QueryGrowth(
            number(config, "attn_scale", above=-1e3, below=1e3),
            number(config, "floor_scale", above=0.0, below=1e9),
            shift=1,
            unrotated_only=True,
        )
    return {
        "mlp_bias": False,
        "intermediate_size": integer(config, "intermediate_size_mlp", 1, MAX_WIDTH),
        "unrotated_layers": unrotated,
        "attention_chunk": (
            integer(config, "attention_chunk_size", 1, MAX_CONTEXT) if is_chunked else None
        ),
        "full_layers": full if is_chunked else frozenset(),
        "query_growth": growth,
        "qk_norm": "head" if flag(config, "use_qk_norm") else None,
        "qk_norm_weights": False,
        "qk_norm_after_rope": True,
        "num_experts": experts,
        "experts_per_token": integer(config, "num_experts_per_tok", 1, experts),
        "expert_size": width,
        "shared_expert_size": width,
        "dense_layers": _dense_layers(config),
        "router": RouterConfig(scores="sigmoid", by_logits=True, on_input=True),
    }


def _unrotated_layers(config: Fields) -> frozenset[int]:
    """Return the layers with a 0 in `no_rope_layers`, by default every fourth."""
    count, found = num_layers(config), config.get("no_rope_layers")
    if not found:
        interval = integer(config, "no_rope_layer_interval", 1, MAX_LAYERS)
        found = [int((i + 1) % interval != 0) for i in range(count)]
    if not isinstance(found, list) or len(found) < count or any(n not in (0, 1) for n in found):
        raise invalid("no_rope_layers", f"a list of {count} numbers 0 or 1", found)
    return frozenset(i for i in range(count) if not found[i])


def _dense_layers(config: Fields) -> frozenset[int]:
    """Return the layers that are not in `moe_layers`, by default every nth is."""
    count, found = num_layers(config), config.get("moe_layers")
    if found is None:
        step = integer(config, "interleave_moe_layer_step", 1, MAX_LAYERS)
        found = list(range(step - 1, count, step))
    if not isinstance(found, list) or not all(isinstance(layer, int) for layer in found):
        raise invalid("moe_layers", "a list of layers", found)
    return frozenset(range(count)) - frozenset(found)


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

_CWM_ROPE = frozen(
    rope_type="llama3",
    rope_theta=1e6,
    factor=16.0,
    high_freq_factor=4.0,
    low_freq_factor=1.0,
    original_max_position_embeddings=8192,
)


META: Mapping[str, Architecture] = {
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
    "LlamaForCausalLM": Architecture(
        name="llama",
        model_type="llama",
        tensors=LLAMA_TENSORS,
        defaults=frozen(
            max_position_embeddings=2048, rms_norm_eps=1e-6, bos_token_id=1, eos_token_id=2
        ),
    ),
    "MllamaForCausalLM": Architecture(
        name="mllama",
        model_type="mllama_text_model",
        overrides=_mllama,
        tensors=LLAMA_TENSORS,
        defaults=frozen(
            max_position_embeddings=131_072,
            rms_norm_eps=1e-5,
            num_key_value_heads=8,
            rope_theta=5e5,
            cross_attention_layers=[3, 8, 13, 18, 23, 28, 33, 38],
            bos_token_id=128_000,
            eos_token_id=128_001,
        ),
    ),
    "Llama4ForCausalLM": Architecture(
        name="llama4",
        model_type="llama4_text",
        overrides=_llama4,
        interleaved_rope=True,
        tensors=llama_tensors(
            {
                "gate": "feed_forward.gate_proj.weight",
                "up": "feed_forward.up_proj.weight",
                "down": "feed_forward.down_proj.weight",
                "router": "feed_forward.router.weight",
                "experts_gate_up": "feed_forward.experts.gate_up_proj",
                "experts_down": "feed_forward.experts.down_proj",
                "shared_gate": "feed_forward.shared_expert.gate_proj.weight",
                "shared_up": "feed_forward.shared_expert.up_proj.weight",
                "shared_down": "feed_forward.shared_expert.down_proj.weight",
            }
        ),
        transposed=frozenset({"experts_gate_up", "experts_down"}),
        supported_keys=frozenset({"num_local_experts", "no_rope_layers", "use_qk_norm"}),
        defaults=frozen(
            max_position_embeddings=131_072,
            rms_norm_eps=1e-5,
            num_key_value_heads=8,
            head_dim=128,
            rope_theta=5e5,
            intermediate_size_mlp=16_384,
            num_local_experts=16,
            num_experts_per_tok=1,
            interleave_moe_layer_step=1,
            no_rope_layer_interval=4,
            attention_chunk_size=8192,
            attn_temperature_tuning=True,
            floor_scale=8192,
            attn_scale=0.1,
            use_qk_norm=True,
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
}
