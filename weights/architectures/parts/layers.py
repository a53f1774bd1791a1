"""Sizes and tables that each layer of a model has for itself."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerSizes:
    """The sizes of one layer, by the names of the fields of `ModelConfig`."""

    head_dim: int
    num_kv_heads: int
    intermediate_size: int
    num_heads: int


@dataclass(frozen=True)
class PerLayerEmbeddings:
    """A token has an embedding of `width` elements for each layer.

    Ids from `vocab_size` on have that of id 0. The layer's part is added to a projection of the
    model's embedding of the token, and a branch at the end of the layer multiplies it with a
    function of the stream (Gemma 3n, Gemma 4).
    """

    width: int
    vocab_size: int


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
