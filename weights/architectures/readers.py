"""Readers of the standard keys of `config.json`, for the fields of `ModelConfig`."""

from collections.abc import Callable, Mapping
from typing import Any

from swiftchat.weights.architectures.parts.architecture import Architecture, frozen
from swiftchat.weights.architectures.parts.fields import (
    MAX_CONTEXT,
    MAX_HEAD_DIM,
    MAX_VOCAB,
    MAX_WIDTH,
    Fields,
    flag,
    hidden_size,
    integer,
    invalid,
    num_heads,
    num_layers,
    number,
    optional_integer,
    optional_number,
)
from swiftchat.weights.architectures.parts.rope import RopeConfig
from swiftchat.weights.architectures.registry import ARCHITECTURES, CLASS_OF_TYPE

DTYPES = ("bfloat16", "float16", "float32")
# Other names, and dtypes of weights that the activations cannot have.
_DTYPE_NAMES = frozen(
    half="float16",
    float="float32",
    double="float32",
    float64="float32",
    auto="bfloat16",
    float8_e4m3fn="bfloat16",
    float8_e5m2="bfloat16",
)

# The names in transformers, and the activations of this program.
_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "relu": "relu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "quick_gelu": "gelu_sigmoid",
    "relu2": "relu2",
}


def readers(config: Fields, architecture: Architecture) -> dict[str, Callable[[], Any]]:
    """Return a function for each field of `ModelConfig` that reads it from its standard key."""
    hidden, heads = hidden_size(config), num_heads(config)
    vocab_size = integer(config, "vocab_size", 1, MAX_VOCAB)

    def head_dim() -> int:
        return _head_dim(config, hidden, heads)

    def rope() -> RopeConfig:
        return RopeConfig.from_hf(config, head_dim(), interleaved=architecture.interleaved_rope)

    def optional(name: str) -> Callable[[], float | None]:
        return lambda: optional_number(config, name, above=0.0, below=1e6)

    return {
        "vocab_size": lambda: vocab_size,
        "hidden_size": lambda: hidden,
        "intermediate_size": lambda: integer(config, "intermediate_size", 1, MAX_WIDTH),
        "num_layers": lambda: num_layers(config),
        "num_heads": lambda: heads,
        "num_kv_heads": lambda: _num_kv_heads(config, heads),
        "head_dim": head_dim,
        "max_context_tokens": lambda: integer(config, "max_position_embeddings", 1, MAX_CONTEXT),
        "norm_eps": lambda: number(config, "rms_norm_eps", above=0.0, below=1.0),
        "activation": lambda: _activation(config),
        "rope": rope,
        "attention_bias": lambda: flag(config, "attention_bias"),
        "mlp_bias": lambda: flag(config, "mlp_bias"),
        "tied_embeddings": lambda: flag(config, "tie_word_embeddings"),
        "bos_id": lambda: next(iter(token_ids(config, "bos_token_id", vocab_size)), None),
        "eos_ids": lambda: token_ids(config, "eos_token_id", vocab_size),
        "dtype": lambda: _dtype(config),
        "query_scalar": optional("query_pre_attn_scalar"),
        "attention_softcap": optional("attn_logit_softcapping"),
        "logit_softcap": optional("final_logit_softcapping"),
    }


def token_ids(config: Mapping[str, Any], name: str, vocab_size: int) -> tuple[int, ...]:
    """Read the field `name` as token ids: absent, one id, or a list of at most 256.

    Some files have -1 for a token that the model lacks.
    """
    value = config.get(name)
    if value is None:
        return ()
    values = value if isinstance(value, list) else [value]
    if len(values) > 256:
        raise invalid(name, "at most 256 token ids", f"a list of {len(values)}")
    present = [item for item in values if item != -1]
    return tuple(integer({name: item}, name, 0, vocab_size - 1) for item in present)


def class_name(config: Fields) -> str:
    """Return the class of transformers that computes the model.

    It is the first known one in `architectures`. If there is none, for example because another
    class was trained, `model_type` decides, as in transformers.
    """
    names = config.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise invalid("architectures", "a list of names", names)
    for name in names:
        if name in ARCHITECTURES:
            generation = ARCHITECTURES[name].generation
            return str(name) if generation is None else generation(config)
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in CLASS_OF_TYPE:
        return CLASS_OF_TYPE[kind]
    if not names:
        raise invalid("architectures", "a list with the name of a class", None)
    return str(names[0])


def _activation(config: Fields) -> str:
    value = config.get("hidden_act", "silu")
    if not isinstance(value, str) or value not in _ACTIVATIONS:
        raise invalid("hidden_act", f"one of {', '.join(_ACTIVATIONS)}", value)
    return _ACTIVATIONS[value]


def _num_kv_heads(config: Fields, heads: int) -> int:
    kv_heads = optional_integer(config, "num_key_value_heads", 1, heads) or heads
    if heads % kv_heads:
        raise invalid("num_key_value_heads", f"a divisor of {heads} heads", kv_heads)
    return kv_heads


def windows(
    config: Fields, default_types: list[str] | None, *, switched: bool
) -> tuple[int | None, frozenset[int]]:
    """Return the sliding window, which `use_sliding_window` may switch off, and layers without it.

    The field `layer_types` lists them; if absent, `default_types` does; if that is None, all
    layers have the window.
    """
    count = num_layers(config)
    window = None
    if not switched or flag(config, "use_sliding_window"):
        window = optional_integer(config, "sliding_window", 1, MAX_CONTEXT)
    types = config.get("layer_types")
    types = default_types if types is None else types
    if types is None:
        return window, frozenset()
    known = ("full_attention", "sliding_attention")
    if not isinstance(types, list) or len(types) != count:
        raise invalid("layer_types", f"a list of {count} names", types)
    for each in types:
        if each not in known:
            raise invalid("layer_types", f"a list of {' and '.join(known)}", each)
    full = frozenset(i for i, each in enumerate(types) if each == "full_attention")
    if len(full) == count:
        return None, frozenset()
    if window is None:
        raise invalid("sliding_window", "a number, as layer_types has sliding_attention", "none")
    return window, full


def _head_dim(config: Fields, hidden: int, heads: int) -> int:
    head_dim = optional_integer(config, "head_dim", 2, MAX_HEAD_DIM)
    if head_dim is None:
        if hidden % heads:
            raise invalid("hidden_size", f"a multiple of {heads} heads", hidden)
        head_dim = hidden // heads
    if head_dim % 2 or not 2 <= head_dim <= MAX_HEAD_DIM:
        raise invalid("head_dim", f"an even number between 2 and {MAX_HEAD_DIM}", head_dim)
    return head_dim


def _dtype(config: Fields) -> str:
    name = "dtype" if config.get("dtype") is not None else "torch_dtype"
    value = config.get(name)
    if value is None:
        return "float32"
    if isinstance(value, str):
        value = value.removeprefix("torch.")
        value = _DTYPE_NAMES.get(value, value)
    if value not in DTYPES:
        raise invalid(name, f"one of {', '.join(DTYPES)}", value)
    return str(value)
