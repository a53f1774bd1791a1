"""The keys of a `config.json`, and the parts of a model that the standard ones describe."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from swiftchat.weights.architectures.parts.attention import Attention, Scores, Values
from swiftchat.weights.architectures.parts.embeddings import Embeddings, Head
from swiftchat.weights.architectures.parts.fields import (
    MAX_CONTEXT,
    MAX_EXPERTS,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_VOCAB,
    MAX_WIDTH,
    Fields,
    dtype,
    flag,
    integer,
    invalid,
    number,
    optional_integer,
    optional_number,
    token_ids,
    without_keys,
)
from swiftchat.weights.architectures.parts.layers import LayerConfig, Layers, Norm
from swiftchat.weights.architectures.parts.mlp import Activation, Mlp, Moe
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.rope import RopeConfig
from swiftchat.weights.architectures.parts.router import RouterConfig

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


@dataclass(frozen=True, eq=False)
class Keys(Mapping[str, Any]):
    """The values of a `config.json`, of which families build the parts of their models.

    A property reads one standard key. A method builds a part: its arguments are fields of the
    part, and those that are not given are read. Both raise `BadModelFile` with the name of a key
    that is missing or invalid.
    """

    fields: Fields
    """The values under their standard keys."""
    family: str
    architecture: str
    ignored_keys: tuple[str, ...] = ()
    """Keys of the file that are not among them."""

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def changed(self, **values: Any) -> Self:
        """Return the keys with other values."""
        return replace(self, fields={**self.fields, **values})

    def without(self, *names: str) -> Self:
        """Return the keys without some, also in the parameters of rotary embeddings."""
        return replace(self, fields=without_keys(self.fields, names))

    @property
    def vocab_size(self) -> int:
        return integer(self, "vocab_size", 1, MAX_VOCAB)

    @property
    def hidden_size(self) -> int:
        return integer(self, "hidden_size", 1, MAX_WIDTH)

    @property
    def intermediate_size(self) -> int:
        return integer(self, "intermediate_size", 1, MAX_WIDTH)

    @property
    def num_layers(self) -> int:
        return integer(self, "num_hidden_layers", 1, MAX_LAYERS)

    @property
    def num_heads(self) -> int:
        return integer(self, "num_attention_heads", 1, MAX_HEADS)

    @property
    def num_kv_heads(self) -> int:
        """As many as query heads without the key."""
        heads = self.num_heads
        kv_heads = optional_integer(self, "num_key_value_heads", 1, heads) or heads
        if heads % kv_heads:
            raise invalid("num_key_value_heads", f"a divisor of {heads} heads", kv_heads)
        return kv_heads

    @property
    def head_dim(self) -> int:
        """An even number; without the key the heads share the hidden size."""
        head_dim = optional_integer(self, "head_dim", 2, MAX_HEAD_DIM)
        if head_dim is None:
            hidden, heads = self.hidden_size, self.num_heads
            if hidden % heads:
                raise invalid("hidden_size", f"a multiple of {heads} heads", hidden)
            head_dim = hidden // heads
        if head_dim % 2 or not 2 <= head_dim <= MAX_HEAD_DIM:
            raise invalid("head_dim", f"an even number between 2 and {MAX_HEAD_DIM}", head_dim)
        return head_dim

    @property
    def eps(self) -> float:
        """The epsilon of norms."""
        return number(self, "rms_norm_eps", above=0.0, below=1.0)

    @property
    def activation_kind(self) -> str:
        value = self.get("hidden_act", "silu")
        if not isinstance(value, str) or value not in _ACTIVATIONS:
            raise invalid("hidden_act", f"one of {', '.join(_ACTIVATIONS)}", value)
        return _ACTIVATIONS[value]

    @property
    def layer_types(self) -> list[str] | None:
        """The kind of each layer; None without the key."""
        found = self.get("layer_types")
        if found is None:
            return None
        if not isinstance(found, list) or not all(isinstance(kind, str) for kind in found):
            raise invalid("layer_types", f"a list of {self.num_layers} names", found)
        return found

    def window(self, *, switched: bool = False) -> int | None:
        """Return the sliding window; if `switched`, `use_sliding_window` must be true for one."""
        if switched and not flag(self, "use_sliding_window"):
            return None
        return optional_integer(self, "sliding_window", 1, MAX_CONTEXT)

    def windows(self, types: list[str] | None, *, switched: bool = False) -> list[int | None]:
        """Return the sliding window of each layer.

        `layer_types` lists the layers that have one, without the key `types`; if that is None too,
        all have. `switched` as in `window`.
        """
        count = self.num_layers
        window = self.window(switched=switched)
        types = self.get("layer_types") if self.get("layer_types") is not None else types
        if types is None:
            return [window] * count
        known = ("full_attention", "sliding_attention")
        if not isinstance(types, list) or len(types) != count:
            raise invalid("layer_types", f"a list of {count} names", types)
        for kind in types:
            if kind not in known:
                raise invalid("layer_types", f"a list of {' and '.join(known)}", kind)
        if window is None and "sliding_attention" in types:
            expected = "a number, as layer_types has sliding_attention"
            raise invalid("sliding_window", expected, "none")
        return [None if kind == "full_attention" else window for kind in types]

    def rope(self, head_dim: int | None = None, *, interleaved: bool = False) -> RopeConfig:
        """Return the rotary embedding of heads of `head_dim` elements."""
        return RopeConfig.from_hf(self, head_dim or self.head_dim, interleaved=interleaved)

    @property
    def num_experts(self) -> int:
        return integer(self, "num_local_experts", 1, MAX_EXPERTS)

    def norm(self, kind: str = "rms", **fields: Any) -> Norm:
        return Norm(kind, **_filled(fields, eps=lambda: self.eps))

    def scores(
        self, head_dim: int | None = None, *, scale: float | None = None, **fields: Any
    ) -> Scores:
        """Return the scores of queries and keys of `head_dim` elements."""
        if scale is None:
            scalar = _optional(self, "query_pre_attn_scalar") or head_dim or self.head_dim
            scale = float(scalar**-0.5)
        return Scores(scale, softcap=_optional(self, "attn_logit_softcapping"), **fields)

    def attention(self, **fields: Any) -> Attention:
        """Return the attention of a layer; its output has a bias if its input has."""
        head_dim = fields.get("head_dim") or self.head_dim
        made = _filled(
            fields,
            num_heads=lambda: self.num_heads,
            num_kv_heads=lambda: self.num_kv_heads,
            head_dim=lambda: head_dim,
            values=lambda: Values(head_dim),
            scores=lambda: self.scores(head_dim),
            rope=lambda: self.rope(head_dim),
            bias=lambda: flag(self, "attention_bias"),
        )
        return Attention(**_filled(made, output_bias=lambda: made["bias"]))

    def activation(self, kind: str | None = None, **fields: Any) -> Activation:
        return Activation(self.activation_kind if kind is None else kind, **fields)

    def mlp(self, **fields: Any) -> Mlp:
        """Return the MLP of a layer."""
        made = _filled(
            fields,
            intermediate_size=lambda: self.intermediate_size,
            activation=self.activation,
            bias=lambda: flag(self, "mlp_bias"),
        )
        return Mlp(**made)

    def moe(self, router: RouterConfig, *, shared: str | None = None, **fields: Any) -> Moe:
        """Return the experts of a layer; the key `shared` is the number of shared ones."""
        made = _filled(
            fields,
            num_experts=lambda: self.num_experts,
            expert_size=lambda: integer(self, "moe_intermediate_size", 1, MAX_WIDTH),
            activation=self.activation,
        )
        if shared is not None:
            count = optional_integer(self, shared, 0, MAX_EXPERTS) or 0
            made["shared_size"] = count * made["expert_size"]
        choices = made["num_experts"] + made.get("identity_experts", 0)
        chosen = {"experts_per_token": lambda: integer(self, "num_experts_per_tok", 1, choices)}
        return Moe(router=router, **_filled(made, **chosen))

    def layers(self, **fields: Any) -> Layers:
        """Return as many equal layers as the model has, by default of attention and an MLP."""
        made = _filled(fields, attention=self.attention, mlp=self.mlp)
        return (LayerConfig(**made),) * self.num_layers

    def embeddings(self, **fields: Any) -> Embeddings:
        return Embeddings(**_filled(fields, vocab_size=lambda: self.vocab_size))

    def head(self, **fields: Any) -> Head:
        made = _filled(fields, tied=lambda: flag(self, "tie_word_embeddings"))
        return Head(softcap=_optional(self, "final_logit_softcapping"), **made)

    def model(self, layers: Layers, **fields: Any) -> ModelConfig:
        """Return the model of these layers, which are as many as those of the file."""
        experts = max((layer.moe.num_experts for layer in layers if layer.moe), default=0)
        if experts * len(layers) > MAX_EXPERTS:
            raise invalid("num_experts", f"at most {MAX_EXPERTS} in all layers", experts)
        longest = "max_position_embeddings"
        made = _filled(
            fields,
            max_context_tokens=lambda: integer(self, longest, 1, MAX_CONTEXT),
            norm=self.norm,
            embeddings=self.embeddings,
            head=self.head,
        )
        return ModelConfig(
            family=self.family,
            architecture=self.architecture,
            ignored_keys=self.ignored_keys,
            dtype=dtype(self),
            bos_id=next(iter(token_ids(self, "bos_token_id", self.vocab_size)), None),
            eos_ids=token_ids(self, "eos_token_id", self.vocab_size),
            hidden_size=self.hidden_size,
            layers=tuple(replace(layer, file_layer=i) for i, layer in enumerate(layers)),
            **made,
        )


def _filled(fields: Mapping[str, Any], **standard: Callable[[], Any]) -> dict[str, Any]:
    """Return the fields, and of those that are not among them what their functions return."""
    return {**fields, **{name: read() for name, read in standard.items() if name not in fields}}


def _optional(keys: Keys, name: str) -> float | None:
    return optional_number(keys, name, above=0.0, below=1e6)
