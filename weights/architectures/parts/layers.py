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


@dataclass(frozen=True)
class SharedBlocks:
    """Blocks of attention and MLP before the mixers of some layers, which share them (Zamba2).

    The layers in `layers` take turns in using `count` blocks. A block reads the stream and the
    token's embedding side by side, through a norm. Its output, multiplied by a matrix of the layer,
    is added to what the layer's mixer reads, but not to the stream. Each layer changes the block's
    matrices of queries, keys and values by products of rank `attention_rank`, and that of gate and
    up by one of rank `mlp_rank`; 0: not at all.
    """

    layers: tuple[int, ...]
    count: int
    attention_rank: int
    mlp_rank: int

    def place(self, layer: int) -> int:
        """Return the number of a layer among those with a block."""
        return self.layers.index(layer)

    def source(self, layer: int) -> int:
        """Return the first layer with the same block, by which its tensors are named."""
        return self.layers[self.place(layer) % self.count]
