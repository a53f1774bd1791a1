"""Attention: its heads, what a query attends to, and what comes before and after it."""

from dataclasses import dataclass

from swiftchat.weights.architectures.parts.latent import LatentAttention
from swiftchat.weights.architectures.parts.rope import QueryGrowth, RopeConfig


@dataclass(frozen=True)
class Scores:
    """How the scores of keys are computed, and which keys a query has scores of."""

    scale: float
    """The factor of products of queries and keys."""
    window: int | None = None
    """How many of the last tokens a query attends to; None: all."""
    chunk: int | None = None
    """The tokens of the chunks within which queries attend; None: there are none."""
    first_key: int = 0
    """The keys before it are seen by no query but their own."""
    softcap: float | None = None
    """Scores x become c·tanh(x/c)."""
    sinks: bool = False
    """Each head has a learned score in its softmax without a value."""
    alibi_scale: float | None = None
    """The factor of linear biases (ALiBi); None: there are none."""
    growth: QueryGrowth | None = None
    """How queries at late positions are scaled; None: they are not."""

    @property
    def visible(self) -> tuple[int | None, int | None, int]:
        """What decides which keys a query sees: `window`, `chunk`, `first_key`."""
        return self.window, self.chunk, self.first_key


@dataclass(frozen=True)
class HeadNorms:
    """The norms of queries and keys."""

    over: str
    """Over each "head", each of the "heads" with separate weights, or the whole "width"."""
    after_rope: bool = False
    """They come after the rotation."""
    has_weights: bool = True


@dataclass(frozen=True)
class OutputGate:
    """The attention's output is multiplied by a function of a projection of its input."""

    by_head: bool = False
    """The projection has one element for each head, otherwise for each element of the output."""
    softplus: bool = False
    """The function is softplus, otherwise the sigmoid."""


@dataclass(frozen=True)
class Values:
    """The values of keys."""

    dim: int
    """The elements of a head's value."""
    normalized: bool = False
    """They have an RMSNorm without weights."""
    are_keys: bool = False
    """They are the keys before their norm and rotation."""


@dataclass(frozen=True)
class Attention:
    """The attention of a layer; sizes in elements."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    """The elements of a query and of a key."""
    values: Values
    scores: Scores
    bias: bool = False
    """The projections of the input have biases; with `latent` those that make latents."""
    output_bias: bool = False
    rope: RopeConfig | None = None
    """None: no rotary embedding."""
    head_norms: HeadNorms | None = None
    gate: OutputGate | None = None
    latent: LatentAttention | None = None
    """Keys and values are functions of a latent."""
    kv_source: int | None = None
    """The layer whose keys and values this one reads; it has only queries. None: its own."""
    clip: float | None = None
    """Queries, keys and values are limited to ±`clip`."""
    in_scale: float = 1.0
    """The factor of the input, which is part of `scores.scale` and `out_scale` already."""
    out_scale: float = 1.0
    """The factor of the output."""

    @property
    def rope_width(self) -> int:
        """The elements of a head that have rotary embeddings or follow them."""
        return self.head_dim if self.latent is None else self.latent.rope_dim

    @property
    def cached_rows(self) -> tuple[int, int]:
        """The rows of a token in the layer's KV cache, and their elements."""
        if self.latent is not None:
            return 1, self.latent.cached_dim
        return 2 * self.num_kv_heads, self.head_dim


# Of models without attention: sizes of workspaces need no case of their own.
NO_ATTENTION = Attention(1, 1, 2, Values(2), Scores(1.0))
