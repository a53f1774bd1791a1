"""A layer, its norms, and the streams between layers."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from swiftchat.weights.architectures.parts.attention import Attention
from swiftchat.weights.architectures.parts.mixers import StateMixer
from swiftchat.weights.architectures.parts.mlp import Mlp, Moe
from swiftchat.weights.architectures.parts.rope import RopeConfig


@dataclass(frozen=True)
class Norm:
    """The norms of a model."""

    kind: str
    """"rms" or "layer"."""
    eps: float
    has_weights: bool = True
    has_bias: bool = False
    unit_offset: bool = False
    """The weights are stored minus one."""


@dataclass(frozen=True)
class LayerConfig:
    """One layer: attention, mixer or both on one input, then MLP, experts or both.

    With `mlp` and `moe` each has norms of its own, and their outputs are added; the router reads
    the stream through a norm of its own and has a factor for each expert. A layer may have a
    single branch.
    """

    attention: Attention | None = None
    mixer: StateMixer | None = None
    mlp: Mlp | None = None
    moe: Moe | None = None
    norm_order: str = "pre"
    """The place of the norms: "pre" (input of a branch), "output" (output of a branch), "sandwich"
    (both), "post" (stream after the addition), "stream" (stream before the branch)."""
    stream_scales: tuple[float, float] = (1.0, 1.0)
    """The factors of a "stream" norm in the stream, before each of the two branches."""
    is_parallel: bool = False
    """Both branches read the same stream."""
    shared_norm: bool = False
    """They read it through one norm."""
    inner_norms: bool = False
    """Norms come before the last matrix of each branch."""
    mixer_activation: str = "silu"
    mixer_out_scale: float = 1.0
    """The factor of the mixer's output."""
    has_scale: bool = False
    """The stream is multiplied by a number at the end."""
    is_shortcut: bool = False
    """The experts read the MLP's input; their output is added after the next layer's MLP."""
    file_layer: int = field(default=0, compare=False)
    """The layer's number in the file, in which equal layers differ."""

    @property
    def has_single_branch(self) -> bool:
        """Whether it has only attention or a mixer, or only an MLP or experts."""
        mixes = self.attention is not None or self.mixer is not None
        return not (mixes and (self.mlp is not None or self.moe is not None))

    def with_attention(self, **fields: Any) -> Self:
        """Return the layer with other fields of its attention, if it has one."""
        if self.attention is None:
            return self
        return replace(self, attention=replace(self.attention, **fields))

    def with_scores(self, **fields: Any) -> Self:
        """Return the layer with other fields of the scores of its attention, if it has one."""
        if self.attention is None:
            return self
        return replace(self, attention=self.attention.with_scores(**fields))


@dataclass(frozen=True)
class Streams:
    """A layer computes stream `active` of `count` residual streams and updates all (Gemma 3n).

    `scaled`: a vector multiplies what the layer's own embeddings read. `residual_rank` is the rank
    of a product of matrices that is added to the output of attention.
    """

    count: int
    active: int
    scaled: bool
    residual_rank: int


Layers = tuple[LayerConfig, ...]


def windowed(
    layers: Layers, windows: Sequence[int | None], local_rope: RopeConfig | None = None
) -> Layers:
    """Return the layers with a sliding window each, or None.

    `local_rope` is the rotation of those that have one; None: that of the others.
    """
    rope = {} if local_rope is None else {"rope": local_rope}
    return tuple(
        layer if window is None else layer.with_attention(**rope).with_scores(window=window)
        for layer, window in zip(layers, windows, strict=True)
    )


def unrotated(layers: Layers, where: Collection[int]) -> Layers:
    """Return the layers, of which those at `where` have no rotary embedding."""
    return tuple(
        layer.with_attention(rope=None) if i in where else layer for i, layer in enumerate(layers)
    )


def mixing(
    layers: Layers, mixer: StateMixer, where: Collection[int], activation: str, **fields: Any
) -> Layers:
    """Return the layers, of which those at `where` have the mixer in place of attention.

    `fields` are others of these layers.
    """
    changes = {"attention": None, "mixer": mixer, "mixer_activation": activation, **fields}
    return tuple(
        replace(layer, **changes) if i in where else layer for i, layer in enumerate(layers)
    )


def sparse(layers: Layers, moe: Moe, dense: Collection[int]) -> Layers:
    """Return the layers with experts in place of the MLP, but for those at `dense`."""
    return tuple(
        layer if i in dense else replace(layer, mlp=None, moe=moe) for i, layer in enumerate(layers)
    )
