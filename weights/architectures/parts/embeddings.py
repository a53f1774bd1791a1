"""What comes before and after the layers: embeddings and head."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Positions:
    """Learned position embeddings: `count` rows, of which row `offset` belongs to position 0."""

    count: int
    offset: int = 0


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
class Embeddings:
    """The embeddings of tokens, and what happens to them before the first layer."""

    vocab_size: int
    extra_rows: int = 0
    """Rows of the file behind those of the vocabulary, for other things than text."""
    width: int | None = None
    """Embeddings of another width are projected to `hidden_size`, and back before the head."""
    scale: float = 1.0
    positions: Positions | None = None
    has_norm: bool = False
    per_layer: PerLayerEmbeddings | None = None


@dataclass(frozen=True)
class Head:
    """The last norm and the matrix that makes logits."""

    tied: bool
    """The matrix is that of the embeddings."""
    has_norm: bool = True
    bias: bool = False
    scale: float = 1.0
    """The factor of logits."""
    softcap: float | None = None
    """Logits x become c·tanh(x/c)."""
