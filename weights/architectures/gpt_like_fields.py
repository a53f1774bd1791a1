"""What the families without a gate fix or read in their own way: fields of `ModelConfig`."""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.fields import Fields, bad, flag, integer
from swiftchat.weights.architectures.prefix_lm import PrefixLM
from swiftchat.weights.architectures.rope import MAX_CONTEXT, RopeConfig

_MAX_HEADS = 4096
_MAX_LAYERS = 2048
_MAX_WIDTH = 2**20
_MAX_VOCAB = 2**24
_LAYER_NORM = {"norm": "layer", "norm_bias": True, "gated": False}
_ALL_BIASES = {"attention_bias": True, "output_bias": True, "mlp_bias": True}


def _heads(config: Fields) -> int:
    return integer(config, "num_attention_heads", 1, _MAX_HEADS)


def _inner(config: Fields, name: str | None) -> int:
    """The FFN's width: of the field `name`, or where that is absent four times the model's."""
    if name is not None and config.get(name) is not None:
        return integer(config, name, 1, _MAX_WIDTH)
    return 4 * integer(config, "hidden_size", 1, _MAX_WIDTH // 4)


def gpt2(config: Fields) -> Mapping[str, Any]:
    scaled = flag(config, "scale_attn_weights")
    return {
        **_LAYER_NORM,
        **_ALL_BIASES,
        "num_kv_heads": _heads(config),
        "intermediate_size": _inner(config, "n_inner"),
        "rope": None,
        "learned_positions": integer(config, "max_position_embeddings", 1, MAX_CONTEXT),
        "query_scalar": None if scaled else 1.0,
    }


def gpt_j(config: Fields) -> Mapping[str, Any]:
    return {
        **_LAYER_NORM,
        "attention_bias": False,
        "output_bias": False,
        "mlp_bias": True,
        "lm_head_bias": True,
        "num_kv_heads": _heads(config),
        "intermediate_size": _inner(config, "n_inner"),
        "parallel_residual": True,
        "shared_norm": True,
    }


def gpt_neox(config: Fields) -> Mapping[str, Any]:
    heads = _heads(config)
    head_dim = integer(config, "hidden_size", heads, _MAX_WIDTH) // heads
    return {
        **_LAYER_NORM,
        "mlp_bias": True,
        "num_kv_heads": heads,
        "parallel_residual": flag(config, "use_parallel_residual"),
        "rope": RopeConfig.from_hf(config, head_dim),
    }


def phi(config: Fields) -> Mapping[str, Any]:
    return {
        **_LAYER_NORM,
        **_ALL_BIASES,
        "lm_head_bias": True,
        "parallel_residual": True,
        "shared_norm": True,
    }


def starcoder2(config: Fields) -> Mapping[str, Any]:
    bias = flag(config, "use_bias")
    return {**_LAYER_NORM, "attention_bias": bias, "output_bias": bias, "mlp_bias": bias}


def opt(config: Fields) -> Mapping[str, Any]:
    if not flag(config, "layer_norm_elementwise_affine"):
        raise bad("layer_norm_elementwise_affine", "true", False)
    hidden = integer(config, "hidden_size", 1, _MAX_WIDTH)
    width = integer(config, "word_embed_proj_dim", 1, _MAX_WIDTH)
    before, bias = flag(config, "do_layer_norm_before"), flag(config, "enable_bias")
    offset = 2
    return {
        **_LAYER_NORM,
        "attention_bias": bias,
        "output_bias": bias,
        "mlp_bias": bias,
        "num_kv_heads": _heads(config),
        "norm_eps": 1e-5,
        "norm_order": "pre" if before else "post",
        "final_norm": before and not flag(config, "_remove_final_layer_norm"),
        "rope": None,
        "learned_positions": integer(config, "max_position_embeddings", 1, MAX_CONTEXT) + offset,
        "position_offset": offset,
        "embedding_size": None if width == hidden else width,
    }


def bloom(config: Fields) -> Mapping[str, Any]:
    return {
        **_LAYER_NORM,
        **_ALL_BIASES,
        "activation": "gelu_tanh",
        "num_kv_heads": _heads(config),
        "intermediate_size": _inner(config, None),
        "embedding_norm": True,
        "rope": None,
        "alibi": True,
    }


def falcon(config: Fields) -> Mapping[str, Any]:
    heads, bias = _heads(config), flag(config, "bias")
    grouped = flag(config, "new_decoder_architecture")
    if grouped:
        kv_heads = integer({"num_kv_heads": heads, **config}, "num_kv_heads", 1, heads)
        if heads % kv_heads:
            raise bad("num_kv_heads", f"a divisor of {heads} heads", kv_heads)
    else:
        kv_heads = 1 if flag(config, "multi_query") else heads
    norms = config.get("num_ln_in_parallel_attn")
    norms = (2 if grouped else 1) if norms is None else norms
    if norms not in (1, 2):
        raise bad("num_ln_in_parallel_attn", "1 or 2", norms)
    parallel = grouped or flag(config, "parallel_attn")
    if grouped and not flag(config, "parallel_attn"):
        raise bad("parallel_attn", "true with new_decoder_architecture", False)
    hidden, alibi = integer(config, "hidden_size", 1, _MAX_WIDTH), flag(config, "alibi")
    return {
        **_LAYER_NORM,
        **({"rope": None} if alibi else {}),
        "alibi": alibi,
        # It is added to the products of queries and keys before they are scaled.
        "alibi_scale": (hidden / heads) ** -0.5 if alibi else 1.0,
        "attention_bias": bias,
        "output_bias": bias,
        "mlp_bias": bias,
        "num_kv_heads": kv_heads,
        "intermediate_size": _inner(config, "ffn_hidden_size"),
        "parallel_residual": parallel,
        "shared_norm": parallel and not (grouped and norms == 2),
    }


def chatglm_6b(config: Fields) -> Mapping[str, Any]:
    for name, wanted in (
        ("position_encoding_2d", True),
        ("quantization_bit", 0),
        ("pre_seq_len", None),
    ):
        if config.get(name, wanted) != wanted:
            raise bad(name, repr(wanted), config[name])
    heads, hidden = _heads(config), integer(config, "hidden_size", 4, _MAX_WIDTH)
    if hidden % (4 * heads):
        raise bad("hidden_size", f"a multiple of 4 · {heads} heads", hidden)
    layers, vocab_size = (
        integer(config, "num_hidden_layers", 1, _MAX_LAYERS),
        integer(config, "vocab_size", 1, _MAX_VOCAB),
    )
    start, *masks = (
        integer(config, f"{name}_token_id", 0, vocab_size - 1) for name in ("bos", "gmask", "mask")
    )
    return {
        **_LAYER_NORM,
        **_ALL_BIASES,
        "activation": "gelu_tanh",
        "num_kv_heads": heads,
        "norm_order": "stream",
        "stream_scale": (2 * layers) ** 0.5,
        "rope": RopeConfig(rotary_dim=hidden // heads // 2, two_dimensional=True),
        "prefix_lm": PrefixLM(start, tuple(masks)),
    }
