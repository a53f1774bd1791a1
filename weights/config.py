"""What a model is: the numbers of its `config.json`, every one checked before it is believed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from swiftchat.errors import BadModelFile
from swiftchat.weights.families import family_of

__all__ = ["ModelConfig", "RopeConfig"]

DTYPES = ("bfloat16", "float16", "float32")

# Far above every published model, far below what would exhaust memory before a tensor is read.
_MAX_LAYERS = 2048
_MAX_HEADS = 4096
_MAX_HEAD_DIM = 4096
_MAX_WIDTH = 2**20
_MAX_VOCAB = 2**24
_MAX_CONTEXT = 2**30


@dataclass(frozen=True)
class RopeConfig:
    """How the angles of rotary position embeddings are computed.

    `scaling` is "none"; "linear" (every frequency divided by `factor`); or "llama3", which
    divides low frequencies by `factor`, keeps high ones and interpolates between the wave
    lengths `original_context_tokens / low_freq_factor` and `… / high_freq_factor`.
    """

    theta: float = 10_000.0
    scaling: str = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_tokens: int = 8192

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        """Read `rope_parameters`, or the older `rope_theta` and `rope_scaling`."""
        rope = _mapping(config, "rope_parameters")
        if rope is None:
            rope = dict(_mapping(config, "rope_scaling") or {})
            rope.setdefault("rope_theta", config.get("rope_theta", 10_000.0))
        theta = _number(rope, "rope_theta", above=0.0, below=1e12, default=10_000.0)
        kind = rope.get("rope_type", rope.get("type", "default"))
        share = config.get("partial_rotary_factor", rope.get("partial_rotary_factor", 1.0))
        if share not in (1, None):
            raise _bad("partial_rotary_factor", "1 (rotary embeddings over whole heads)", share)
        if kind in ("default", None):
            return cls(theta)
        if kind == "linear":
            return cls(theta, "linear", _number(rope, "factor", above=0.0, below=1e6))
        if kind != "llama3":
            raise BadModelFile(
                f"unknown rope scaling {str(kind)[:80]!r} in config.json",
                "known: default, linear, llama3",
            )
        low = _number(rope, "low_freq_factor", above=0.0, below=1e6)
        return cls(
            theta,
            "llama3",
            _number(rope, "factor", above=0.0, below=1e6),
            low,
            _number(rope, "high_freq_factor", above=low, below=1e6),
            _integer(rope, "original_max_position_embeddings", 1, _MAX_CONTEXT),
        )


@dataclass(frozen=True)
class ModelConfig:
    """A decoder described by data; sizes in elements, `max_context_tokens` in tokens.

    `architecture` is the Hugging Face class name and `family` its entry in the family table.
    `sliding_window` None means full attention. `dtype` is the one the weights were saved in.
    """

    family: str
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_context_tokens: int
    norm_eps: float
    activation: str
    rope: RopeConfig
    attention_bias: bool
    output_bias: bool
    mlp_bias: bool
    tied_embeddings: bool
    sliding_window: int | None
    bos_id: int | None
    eos_ids: tuple[int, ...]
    dtype: str

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        """Read a parsed `config.json`; `BadModelFile` names the first field that cannot be."""
        if not isinstance(config, Mapping):
            raise BadModelFile("config.json is not a JSON object")
        architecture = _architecture(config)
        family = family_of(architecture)
        config = {**family.defaults, **config}
        _refuse_unsupported(config)
        hidden = _integer(config, "hidden_size", 1, _MAX_WIDTH)
        heads = _integer(config, "num_attention_heads", 1, _MAX_HEADS)
        kv_heads = _optional_integer(config, "num_key_value_heads", 1, heads) or heads
        if heads % kv_heads:
            raise _bad("num_key_value_heads", f"a divisor of {heads} heads", kv_heads)
        vocab_size = _integer(config, "vocab_size", 1, _MAX_VOCAB)
        bias = _flag(config, "attention_bias")
        return cls(
            family=family.name,
            architecture=architecture,
            vocab_size=vocab_size,
            hidden_size=hidden,
            intermediate_size=_integer(config, "intermediate_size", 1, _MAX_WIDTH),
            num_layers=_integer(config, "num_hidden_layers", 1, _MAX_LAYERS),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=_head_dim(config, hidden, heads),
            max_context_tokens=_integer(config, "max_position_embeddings", 1, _MAX_CONTEXT),
            norm_eps=_number(config, "rms_norm_eps", above=0.0, below=1.0),
            activation="silu",
            rope=RopeConfig.from_hf(config),
            attention_bias=bias,
            output_bias=bias,
            mlp_bias=_flag(config, "mlp_bias"),
            tied_embeddings=_flag(config, "tie_word_embeddings"),
            sliding_window=_optional_integer(config, "sliding_window", 1, _MAX_CONTEXT),
            bos_id=_optional_integer(config, "bos_token_id", 0, vocab_size - 1),
            eos_ids=token_ids(config, "eos_token_id", vocab_size),
            dtype=_dtype(config),
        )


def token_ids(config: Mapping[str, Any], name: str, vocab_size: int) -> tuple[int, ...]:
    """The field `name` as token ids: absent, one id or a list of at most 256 are all allowed."""
    value = config.get(name)
    if value is None:
        return ()
    values = value if isinstance(value, list) else [value]
    if len(values) > 256:
        raise _bad(name, "at most 256 token ids", f"a list of {len(values)}")
    return tuple(_integer({name: item}, name, 0, vocab_size - 1) for item in values)


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    if not (isinstance(names, list) and len(names) == 1 and isinstance(names[0], str)):
        raise _bad("architectures", "a list with one name", names)
    return names[0]


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    for field in ("quantization_config", "compression_config"):
        if config.get(field) is not None:
            raise BadModelFile(
                f"config.json has a {field}: quantised weights are not computed with yet",
                "swiftchat convert MODEL NEW makes a plain model of it",
            )
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise _bad("hidden_act", "'silu'", activation)


def _head_dim(config: Mapping[str, Any], hidden: int, heads: int) -> int:
    head_dim = _optional_integer(config, "head_dim", 2, _MAX_HEAD_DIM)
    if head_dim is None:
        if hidden % heads:
            raise _bad("hidden_size", f"a multiple of {heads} heads", hidden)
        head_dim = hidden // heads
    if head_dim % 2 or not 2 <= head_dim <= _MAX_HEAD_DIM:
        raise _bad("head_dim", f"an even number between 2 and {_MAX_HEAD_DIM}", head_dim)
    return head_dim


def _dtype(config: Mapping[str, Any]) -> str:
    name = "dtype" if config.get("dtype") is not None else "torch_dtype"
    value = config.get(name)
    if value is None:
        return "float32"
    if value not in DTYPES:
        raise _bad(name, f"one of {', '.join(DTYPES)}", value)
    return str(value)


def _bad(name: str, wanted: str, found: object) -> BadModelFile:
    if found is None:
        return BadModelFile(f"config.json: {name} is missing; it must be {wanted}")
    if isinstance(found, int) and found.bit_length() > 64:
        shown = "a huge number"
    else:
        plain = isinstance(found, bool | int | float | str)
        shown = repr(found) if plain else type(found).__name__
    shown = shown if len(shown) <= 80 else shown[:79] + "…"
    return BadModelFile(f"config.json: {name} must be {wanted}, not {shown}")


def _mapping(config: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    value = config.get(name)
    if value is None or isinstance(value, Mapping):
        return value
    raise _bad(name, "an object", value)


def _flag(config: Mapping[str, Any], name: str) -> bool:
    value = config.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise _bad(name, "true or false", value)


def _integer(config: Mapping[str, Any], name: str, low: int, high: int) -> int:
    value = config.get(name)
    # A bool is an int in Python, and never a size.
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise _bad(name, f"an integer from {low} to {high}", value)
    return value


def _optional_integer(config: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    return None if config.get(name) is None else _integer(config, name, low, high)


def _number(
    config: Mapping[str, Any],
    name: str,
    *,
    above: float,
    below: float,
    default: float | None = None,
) -> float:
    value = config.get(name, default)
    valid = isinstance(value, int | float) and not isinstance(value, bool)
    # NaN compares false with everything, so it does not pass either.
    if not valid or not above < value < below:
        raise _bad(name, f"a number above {above:g} and below {below:g}", value)
    return float(value)
