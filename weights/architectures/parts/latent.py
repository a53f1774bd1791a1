"""The sizes of multi-head latent attention."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SparseIndex:
    """Which keys a query attends to: DeepSeek Sparse Attention (arXiv:2512.02556), section 2.1.

    A token caches one more key, of which as many elements are rotated as in the attention; it also
    has `num_heads` such queries and as many weights. The score of a key is the weighted sum of the
    positive parts of its products with the queries.
    """

    num_heads: int
    dim: int
    """The elements of a key of the index."""
    top_k: int
    """How many of the best keys remain."""
    interleaved: bool = False
    """Rotated pairs are neighbors in the file."""
    norm_eps: float = 1e-6


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention: DeepSeek-V2 (arXiv:2405.04434), section 2.1.

    A token's input is projected to a latent, which is normalized, and to a key that is rotated and
    that all heads share: these two are cached. The other elements of keys, and values, are linear
    functions of the latent.
    """

    kv_rank: int
    """The elements of the latent."""
    nope_dim: int
    """The elements of a head's key that are functions of the latent."""
    rope_dim: int
    """The elements of the rotated key."""
    value_dim: int
    """The elements of a head's value."""
    q_rank: int | None = None
    """Queries are functions of a normalized projection to so many elements; None: of the input."""
    interleaved: bool = False
    """Rotated pairs are neighbors in the file."""
    norm_eps: float = 1e-6
    """Of the two norms inside."""
    q_scale: float = 1.0
    """The factor of queries."""
    kv_scale: float = 1.0
    """The factor of latents."""
    index: SparseIndex | None = None
    """Attention is sparse."""

    @property
    def head_dim(self) -> int:
        """The elements of a head's query and key."""
        return self.nope_dim + self.rope_dim

    @property
    def key_dim(self) -> int:
        """The elements of a latent and of the rotated key beside it."""
        return self.kv_rank + self.rope_dim

    @property
    def cached_dim(self) -> int:
        """The elements of a token in the KV cache."""
        return self.key_dim + (0 if self.index is None else self.index.dim)
