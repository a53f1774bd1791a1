"""GLM-4 in transformers' format, ChatGLM2/3 and GLM-4-9B as first published, and ChatGLM-6B.

Defaults and overrides are those of the model classes in transformers; ChatGLM's are those of
the code published with its weights.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.families.gpt import NEOX_LAYER
from swiftchat.weights.architectures.parts.architecture import (
    ALL_BIASES,
    LAYER_NORM_UNGATED,
    SEPARATE_GATE_UP,
    Architecture,
    frozen,
    llama_tensors,
    tensor_names,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_HEAD_DIM,
    MAX_VOCAB,
    MAX_WIDTH,
    Fields,
    flag,
    integer,
    invalid,
    num_heads,
    num_layers,
    number,
)
from swiftchat.weights.architectures.parts.prefix_lm import PrefixLM
from swiftchat.weights.architectures.parts.rope import RopeConfig

CHATGLM, CHATGLM_6B = "ChatGLMModel", "ChatGLMForConditionalGeneration"


def chatglm_generation(config: Fields) -> str:
    """Return `CHATGLM_6B` or `CHATGLM`: both generations use either class name."""
    return CHATGLM_6B if "position_encoding_2d" in config else CHATGLM


def _glm(config: Fields) -> Mapping[str, Any]:
    return {"output_bias": False, "mlp_bias": False}


def _glm4(config: Fields) -> Mapping[str, Any]:
    return {**_glm(config), "norm_order": "sandwich"}


def _chatglm(config: Fields) -> Mapping[str, Any]:
    for name, only in (("rmsnorm", True), ("post_layer_norm", True), ("add_bias_linear", False)):
        if config.get(name, only) is not only:
            raise invalid(name, str(only).lower(), config[name])
    heads = num_heads(config)
    head_dim = integer(config, "head_dim", 2, MAX_HEAD_DIM)
    grouped = flag(config, "multi_query_attention")
    ratio = number(config, "rope_ratio", above=0.0, below=1e6, default=1.0)
    rope = {"rope_theta": 10_000.0 * ratio, "partial_rotary_factor": 0.5}
    return {
        "num_kv_heads": integer(config, "multi_query_group_num", 1, heads) if grouped else heads,
        "attention_bias": flag(config, "add_qkv_bias"),
        "output_bias": False,
        "mlp_bias": False,
        "tied_embeddings": flag(config, "tie_word_embeddings"),
        "rope": RopeConfig.from_hf(rope, head_dim, interleaved=True),
    }


def _chatglm_6b(config: Fields) -> Mapping[str, Any]:
    for name, only in (
        ("position_encoding_2d", True),
        ("quantization_bit", 0),
        ("pre_seq_len", None),
    ):
        if config.get(name, only) != only:
            raise invalid(name, repr(only), config[name])
    heads, hidden = num_heads(config), integer(config, "hidden_size", 4, MAX_WIDTH)
    if hidden % (4 * heads):
        raise invalid("hidden_size", f"a multiple of 4 · {heads} heads", hidden)
    layers, vocab_size = num_layers(config), integer(config, "vocab_size", 1, MAX_VOCAB)
    start, *masks = (
        integer(config, f"{name}_token_id", 0, vocab_size - 1) for name in ("bos", "gmask", "mask")
    )
    return {
        **LAYER_NORM_UNGATED,
        **ALL_BIASES,
        "activation": "gelu_tanh",
        "num_kv_heads": heads,
        "norm_order": "stream",
        "stream_scale": (2 * layers) ** 0.5,
        "rope": RopeConfig(rotary_dim=hidden // heads // 2, two_dimensional=True),
        "prefix_lm": PrefixLM(start, tuple(masks)),
    }


_GLM_DEFAULTS = frozen(
    max_position_embeddings=131_072,
    rms_norm_eps=1.5625e-7,
    num_key_value_heads=2,
    head_dim=128,
    attention_bias=True,
    partial_rotary_factor=0.5,
    eos_token_id=[151_329, 151_336, 151_338],
)

GLM: Mapping[str, Architecture] = {
    "GlmForCausalLM": Architecture(
        name="glm",
        model_type="glm",
        overrides=_glm,
        interleaved_rope=True,
        supported_keys=frozenset({"partial_rotary_factor"}),
        tensors=llama_tensors({"gate_up": "mlp.gate_up_proj.weight"}, without=SEPARATE_GATE_UP),
        defaults=_GLM_DEFAULTS,
    ),
    "Glm4ForCausalLM": Architecture(
        name="glm4",
        model_type="glm4",
        overrides=_glm4,
        interleaved_rope=True,
        supported_keys=frozenset({"partial_rotary_factor"}),
        tensors=llama_tensors(
            {
                "gate_up": "mlp.gate_up_proj.weight",
                "attn_out_norm": "post_self_attn_layernorm.weight",
                "mlp_out_norm": "post_mlp_layernorm.weight",
            },
            without=SEPARATE_GATE_UP,
        ),
        defaults=_GLM_DEFAULTS,
    ),
    CHATGLM: Architecture(
        name="chatglm",
        model_type="chatglm",
        overrides=_chatglm,
        prefix="transformer.",
        renamed=frozen(
            vocab_size="padded_vocab_size",
            num_hidden_layers="num_layers",
            intermediate_size="ffn_hidden_size",
            head_dim="kv_channels",
            max_position_embeddings="seq_length",
            rms_norm_eps="layernorm_epsilon",
        ),
        tensors=tensor_names(
            {
                "qkv": "self_attention.query_key_value.weight",
                "qkv_bias": "self_attention.query_key_value.bias",
                "o": "self_attention.dense.weight",
                "gate_up": "mlp.dense_h_to_4h.weight",
                "down": "mlp.dense_4h_to_h.weight",
                "attn_norm": "input_layernorm.weight",
                "mlp_norm": "post_attention_layernorm.weight",
            },
            embed="transformer.embedding.word_embeddings.weight",
            final_norm="transformer.encoder.final_layernorm.weight",
            lm_head="transformer.output_layer.weight",
            layer="transformer.encoder.layers.{i}.",
        ),
        defaults=frozen(layernorm_epsilon=1e-5, seq_length=2048, kv_channels=128),
    ),
    CHATGLM_6B: Architecture(
        name="chatglm-6b",
        model_type="chatglm",
        overrides=_chatglm_6b,
        prefix="transformer.",
        qkv_in_groups=True,
        renamed=frozen(
            num_hidden_layers="num_layers",
            intermediate_size="inner_hidden_size",
            max_position_embeddings="max_sequence_length",
            rms_norm_eps="layernorm_epsilon",
        ),
        tensors=tensor_names(
            NEOX_LAYER,
            embed="transformer.word_embeddings.weight",
            final_norm="transformer.final_layernorm.weight",
            final_norm_bias="transformer.final_layernorm.bias",
            lm_head="lm_head.weight",
            layer="transformer.layers.{i}.",
        ),
        defaults=frozen(
            position_encoding_2d=True, max_sequence_length=2048, layernorm_epsilon=1e-5
        ),
    ),
}
