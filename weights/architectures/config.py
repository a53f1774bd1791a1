"""What a model is: the numbers of its `config.json`, every one checked before it is believed."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Self

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.fields import (
    Fields,
    bad,
    flag,
    integer,
    number,
    optional_integer,
    optional_number,
)
from swiftchat.weights.architectures.prefix_lm import PrefixLM
from swiftchat.weights.architectures.registry import architecture_of
from swiftchat.weights.architectures.rope import MAX_CONTEXT, RopeConfig
from swiftchat.weights.architectures.unsupported_keys import reject_unsupported_keys

__all__ = ["ModelConfig", "RopeConfig"]

DTYPES = ("bfloat16", "float16", "float32")

# Far above every published model, far below what would exhaust memory before a tensor is read.
_MAX_LAYERS = 2048
_MAX_HEADS = 4096
_MAX_HEAD_DIM = 4096
_MAX_WIDTH = 2**20
_MAX_VOCAB = 2**24
_MAX_EXPERTS = 2**16  # in all layers

_CHATGLM, _CHATGLM_6B = "ChatGLMModel", "ChatGLMForConditionalGeneration"

# What transformers calls them, and what they are.
_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "relu": "relu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


@dataclass(frozen=True)
class ModelConfig:
    """A decoder described by data; sizes in elements, `max_context_tokens` in tokens.

    `architecture` is the Hugging Face class name and `family` its entry in the family table.
    `sliding_window` None means full attention. `dtype` is the one the weights were saved in.
    The fields with defaults are those in which a family differs from Llama:

    `norm` is "rms" or "layer", with a bias if `norm_bias`; `norm_unit_offset`: one is to be
    added to its weights. `norm_order` says what is normed: "pre" a branch's input, "output" its
    output, "sandwich" both, "post" the residual stream after the branch is added, "stream" the
    residual stream before the branch, which goes on `stream_scale` times as large.
    `parallel_residual`: attention and FFN read the same stream, `shared_norm` by one norm too.
    `gated`: the FFN has a gate; `interleaved_gate`: its rows and those of up alternate;
    `gate_limit`: both are clamped there, and up is one more. `qk_norm`: norm of queries and
    keys, of each "head", of all "heads" with weights of their own, or of the whole "width".
    `query_scalar`: scores are divided by its root, None: `head_dim`. `attention_sinks`: each
    head has a score that is nobody's.

    `rope` None: no rotary embedding. `full_layers` see everything in spite of `sliding_window`;
    the others take `local_rope`, if there is one; `unrotated_layers` none. `learned_positions`
    rows are added to the embeddings, the first belonging to position `-position_offset`. `alibi`:
    scores fall with distance, `alibi_scale` times as much as elsewhere. `embedding_size`, where
    it is not None, is projected to and from `hidden_size`. `attention_softcap` and
    `logit_softcap` c make x into c·tanh(x/c). `num_experts` 0: a plain FFN; else each token takes
    `experts_per_token` experts of width `expert_size`, and `normalized_experts` makes their
    shares add up to one; `expert_bias`: router and experts have biases. Every token also takes a
    shared expert of width `shared_expert_size`, if that is not 0. `dense_layers` have a plain FFN
    all the same. `prefix_lm`: prompts attend both ways.
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
    rope: RopeConfig | None
    attention_bias: bool
    output_bias: bool
    mlp_bias: bool
    tied_embeddings: bool
    sliding_window: int | None
    bos_id: int | None
    eos_ids: tuple[int, ...]
    dtype: str
    norm: str = "rms"
    norm_bias: bool = False
    norm_unit_offset: bool = False
    norm_order: str = "pre"
    stream_scale: float = 1.0
    final_norm: bool = True
    embedding_norm: bool = False
    parallel_residual: bool = False
    shared_norm: bool = False
    gated: bool = True
    interleaved_gate: bool = False
    gate_limit: float | None = None
    qk_norm: str | None = None
    query_scalar: float | None = None
    local_rope: RopeConfig | None = None
    full_layers: frozenset[int] = frozenset()
    unrotated_layers: frozenset[int] = frozenset()
    learned_positions: int = 0
    position_offset: int = 0
    alibi: bool = False
    alibi_scale: float = 1.0
    attention_sinks: bool = False
    embedding_scale: float = 1.0
    embedding_size: int | None = None
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    lm_head_bias: bool = False
    num_experts: int = 0
    experts_per_token: int = 0
    normalized_experts: bool = False
    expert_size: int = 0
    expert_bias: bool = False
    shared_expert_size: int = 0
    dense_layers: frozenset[int] = frozenset()
    prefix_lm: PrefixLM | None = None

    @property
    def like_llama(self) -> bool:
        """Whether the model computes what Llama does: every field with a default has that one."""
        plain = all(
            getattr(self, field.name) == field.default
            for field in fields(self)
            if field.default is not MISSING
        )
        return plain and self.rope is not None

    @property
    def attention_scale(self) -> float:
        """What the products of queries and keys are multiplied by."""
        scalar = self.head_dim if self.query_scalar is None else self.query_scalar
        return float(scalar**-0.5)

    def window(self, layer: int) -> int | None:
        """How many of the last tokens a layer sees; None: all."""
        return None if layer in self.full_layers else self.sliding_window

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        """Read a parsed `config.json`; `BadModelFile` names the first field that cannot be."""
        if not isinstance(config, Mapping):
            raise BadModelFile("config.json is not a JSON object")
        architecture = _architecture(config)
        family = architecture_of(architecture)
        config = family.in_usual_words(config)
        reject_unsupported_keys(config, family.reads)
        facts = dict(family.facts(config))

        def fact(name: str, read: Callable[[], Any]) -> Any:
            return facts.pop(name) if name in facts else read()

        hidden = integer(config, "hidden_size", 1, _MAX_WIDTH)
        heads = integer(config, "num_attention_heads", 1, _MAX_HEADS)
        kv_heads = fact("num_kv_heads", lambda: _kv_heads(config, heads))
        layers = integer(config, "num_hidden_layers", 1, _MAX_LAYERS)
        vocab_size = integer(config, "vocab_size", 1, _MAX_VOCAB)
        head_dim = _head_dim(config, hidden, heads)
        bias = fact("attention_bias", lambda: flag(config, "attention_bias"))
        window, full_layers = _windows(config, layers, facts.pop("layer_types", None))
        made = cls(
            family=family.name,
            architecture=architecture,
            vocab_size=vocab_size,
            hidden_size=hidden,
            intermediate_size=fact(
                "intermediate_size",
                lambda: integer(config, "intermediate_size", 1, _MAX_WIDTH),
            ),
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            max_context_tokens=integer(config, "max_position_embeddings", 1, MAX_CONTEXT),
            norm_eps=fact("norm_eps", lambda: number(config, "rms_norm_eps", above=0.0, below=1.0)),
            activation=fact("activation", lambda: _activation(config)),
            rope=fact(
                "rope",
                lambda: RopeConfig.from_hf(config, head_dim, interleaved=family.interleaved_rope),
            ),
            attention_bias=bias,
            output_bias=fact("output_bias", lambda: bias),
            mlp_bias=fact("mlp_bias", lambda: flag(config, "mlp_bias")),
            tied_embeddings=fact("tied_embeddings", lambda: flag(config, "tie_word_embeddings")),
            sliding_window=window,
            full_layers=full_layers,
            bos_id=optional_integer(config, "bos_token_id", 0, vocab_size - 1),
            eos_ids=token_ids(config, "eos_token_id", vocab_size),
            dtype=_dtype(config),
            query_scalar=fact(
                "query_scalar",
                lambda: optional_number(config, "query_pre_attn_scalar", above=0.0, below=1e6),
            ),
            attention_softcap=optional_number(
                config, "attn_logit_softcapping", above=0.0, below=1e6
            ),
            logit_softcap=optional_number(config, "final_logit_softcapping", above=0.0, below=1e6),
            **facts,
        )
        if made.num_experts * layers > _MAX_EXPERTS:
            raise bad("num_experts", f"at most {_MAX_EXPERTS} in all layers", made.num_experts)
        return made


def token_ids(config: Mapping[str, Any], name: str, vocab_size: int) -> tuple[int, ...]:
    """The field `name` as token ids: absent, one id or a list of at most 256 are all allowed."""
    value = config.get(name)
    if value is None:
        return ()
    values = value if isinstance(value, list) else [value]
    if len(values) > 256:
        raise bad(name, "at most 256 token ids", f"a list of {len(values)}")
    return tuple(integer({name: item}, name, 0, vocab_size - 1) for item in values)


def _architecture(config: Fields) -> str:
    names = config.get("architectures")
    if not (isinstance(names, list) and len(names) == 1 and isinstance(names[0], str)):
        raise bad("architectures", "a list with one name", names)
    if names[0] in (_CHATGLM, _CHATGLM_6B):
        # Both generations call themselves either; only the first has this key.
        return _CHATGLM_6B if "position_encoding_2d" in config else _CHATGLM
    return names[0]


def _activation(config: Fields) -> str:
    value = config.get("hidden_act", "silu")
    if not isinstance(value, str) or value not in _ACTIVATIONS:
        raise bad("hidden_act", f"one of {', '.join(_ACTIVATIONS)}", value)
    return _ACTIVATIONS[value]


def _kv_heads(config: Fields, heads: int) -> int:
    kv_heads = optional_integer(config, "num_key_value_heads", 1, heads) or heads
    if heads % kv_heads:
        raise bad("num_key_value_heads", f"a divisor of {heads} heads", kv_heads)
    return kv_heads


def _windows(
    config: Fields, num_layers: int, usual: list[str] | None
) -> tuple[int | None, frozenset[int]]:
    """The sliding window, and the layers it does not hold for.

    `layer_types` says which; where it is absent, `usual` does, or the window is every layer's.
    """
    window = optional_integer(config, "sliding_window", 1, MAX_CONTEXT)
    if not flag({"use_sliding_window": True, **config}, "use_sliding_window"):
        window = None
    kinds = config.get("layer_types")
    kinds = usual if kinds is None else kinds
    if kinds is None:
        return window, frozenset()
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise bad("layer_types", f"a list of {num_layers} names", kinds)
    for kind in kinds:
        if kind not in known:
            raise bad("layer_types", f"of {' and '.join(known)}", kind)
    full = frozenset(i for i, kind in enumerate(kinds) if kind == "full_attention")
    if len(full) == num_layers:
        return None, frozenset()
    if window is None:
        raise bad("sliding_window", "a number, as layer_types has sliding_attention", "none")
    return window, full


def _head_dim(config: Fields, hidden: int, heads: int) -> int:
    head_dim = optional_integer(config, "head_dim", 2, _MAX_HEAD_DIM)
    if head_dim is None:
        if hidden % heads:
            raise bad("hidden_size", f"a multiple of {heads} heads", hidden)
        head_dim = hidden // heads
    if head_dim % 2 or not 2 <= head_dim <= _MAX_HEAD_DIM:
        raise bad("head_dim", f"an even number between 2 and {_MAX_HEAD_DIM}", head_dim)
    return head_dim


def _dtype(config: Fields) -> str:
    name = "dtype" if config.get("dtype") is not None else "torch_dtype"
    value = config.get(name)
    if value is None:
        return "float32"
    if value not in DTYPES:
        raise bad(name, f"one of {', '.join(DTYPES)}", value)
    return str(value)
