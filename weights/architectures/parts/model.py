"""A model: its parts in the order in which it computes them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Self

from swiftchat.weights.architectures.parts.attention import NO_ATTENTION, Attention
from swiftchat.weights.architectures.parts.embeddings import Embeddings, Head
from swiftchat.weights.architectures.parts.fields import MAX_CONTEXT
from swiftchat.weights.architectures.parts.layers import LayerConfig, Norm, Streams
from swiftchat.weights.architectures.parts.mixers import StateMixer
from swiftchat.weights.architectures.parts.mlp import Activation, Mlp, Moe
from swiftchat.weights.architectures.parts.prefix_lm import PrefixLM
from swiftchat.weights.architectures.parts.rope import QueryGrowth, RopeConfig


@dataclass(frozen=True)
class ModelConfig:
    """A decoder: its parts in the order in which it computes them, and what it is called.

    A part that a model lacks is None. `layers` has the parts of each layer; `attention`, `mlp`,
    `moe` and `mixer` are those of the first layer that has one, for what is the same in all.
    """

    family: str
    """The short name of the architecture."""
    architecture: str
    """The Hugging Face class name."""
    dtype: str
    """The dtype of the saved weights."""
    max_context_tokens: int
    bos_id: int | None
    eos_ids: tuple[int, ...]
    hidden_size: int
    norm: Norm
    embeddings: Embeddings
    layers: tuple[LayerConfig, ...]
    head: Head
    residual_scale: float = 1.0
    """The factor of branches: the stream is computed divided by it, `norm.eps` by its square."""
    prefix_lm: PrefixLM | None = None
    """Prompts have a bidirectional prefix."""
    streams: Streams | None = None
    """There are several residual streams."""
    ignored_keys: tuple[str, ...] = ()
    """Keys of `config.json` that this architecture ignores, as in transformers, though they change
    the computation of others."""

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def vocab_size(self) -> int:
        return self.embeddings.vocab_size

    @property
    def head_width(self) -> int:
        """The elements of a hidden state that the head reads."""
        return self.embeddings.width or self.hidden_size

    @property
    def attention(self) -> Attention:
        """The first layer's attention; without attention one with a single tiny head."""
        attends = (layer.attention for layer in self.layers)
        return next((each for each in attends if each is not None), NO_ATTENTION)

    @property
    def has_attention(self) -> bool:
        return any(layer.attention is not None for layer in self.layers)

    @property
    def mixer(self) -> StateMixer | None:
        mixers = (layer.mixer for layer in self.layers)
        return next((mixer for mixer in mixers if mixer is not None), None)

    @property
    def mixer_activation(self) -> str:
        """The activation of the mixers, of which a model has one kind; "silu" without any."""
        mixing = (layer for layer in self.layers if layer.mixer is not None)
        return next((layer.mixer_activation for layer in mixing), "silu")

    @property
    def mlp(self) -> Mlp | None:
        mlps = (layer.mlp for layer in self.layers)
        return next((mlp for mlp in mlps if mlp is not None), None)

    @property
    def moe(self) -> Moe | None:
        moes = (layer.moe for layer in self.layers)
        return next((moe for moe in moes if moe is not None), None)

    @property
    def activation(self) -> Activation:
        """The activation of the first MLP or experts; of a model with mixers alone, theirs."""
        part = self.mlp or self.moe
        return Activation(self.mixer_activation) if part is None else part.activation

    @property
    def attention_layers(self) -> list[int]:
        """The layers with keys and values of their own."""
        return [
            i
            for i, layer in enumerate(self.layers)
            if layer.attention is not None and layer.attention.kv_source is None
        ]

    @property
    def mixer_layers(self) -> list[int]:
        return [i for i, layer in enumerate(self.layers) if layer.mixer is not None]

    @property
    def attentions(self) -> Iterator[Attention]:
        """The attention of each layer that has one."""
        return (layer.attention for layer in self.layers if layer.attention is not None)

    @property
    def has_even_layers(self) -> bool:
        """Whether all attention has the same heads, and keys and values of its own."""
        heads = {(each.num_heads, each.num_kv_heads, each.head_dim) for each in self.attentions}
        return len(heads) <= 1 and all(each.kv_source is None for each in self.attentions)

    @property
    def rope(self) -> RopeConfig | None:
        """The rotary embedding of the layers that attend to all tokens, or else of the others."""
        rotated = [each for each in self.attentions if each.rope is not None]
        full = [each for each in rotated if each.scores.window is None]
        return next((each.rope for each in full or rotated), None)

    @property
    def growth(self) -> QueryGrowth | None:
        """How queries grow in the layers where they do."""
        growths = (each.scores.growth for each in self.attentions)
        return next((growth for growth in growths if growth is not None), None)

    @property
    def ropes(self) -> list[tuple[RopeConfig, int]]:
        """The rotary embeddings of all layers, each with the elements of a head."""
        found = [(each.rope, each.rope_width) for each in self.attentions if each.rope is not None]
        return list(dict.fromkeys(found))

    def with_layers(self, change: Callable[[LayerConfig], LayerConfig]) -> Self:
        """Return the model with changed layers."""
        return replace(self, layers=tuple(change(layer) for layer in self.layers))

    @property
    def longest_context_tokens(self) -> int:
        """The longest context that a user may ask for: rotary embeddings may be stretched to it.

        `max_context_tokens` is what the model was published for. Files whose embeddings a user
        stretches, as pages of models describe, keep the shorter one.
        """
        rope = self.rope
        scaling = None if rope is None else rope.scaling
        if scaling is None or scaling.kind not in ("linear", "yarn"):
            return self.max_context_tokens
        is_yarn = scaling.kind == "yarn"
        original = scaling.original_context_tokens if is_yarn else self.max_context_tokens
        return min(MAX_CONTEXT, max(self.max_context_tokens, int(original * scaling.factor)))
