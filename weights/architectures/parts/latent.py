"""The sizes of multi-head latent attention."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SparseIndex:
    """Which keys a query attends to: DeepSeek Sparse Attention (arXiv:2512.02556), section 2.1.

    A token caches one more key of `dim` elements, of which as many are rotated as in the attention;
    it also has `num_heads` such queries and as many weights. The score of a key is the weighted sum
    of the positive parts of its products with the queries; the `top_k` best keys remain.
    `interleaved`: rotated pairs are neighbors in the file.
    """

    num_heads: int
    dim: int
    top_k: int
    interleaved: bool = False
    norm_eps: float = 1e-6


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention: DeepSeek-V2 (arXiv:2405.04434), section 2.1.

    A token's input is projected to a latent of `kv_rank` elements, which is normalized, and to
    `rope_dim` elements, which are rotated: these two are cached. Each head has keys of `nope_dim`
    and values of `value_dim` elements, linear functions of the latent; its whole key also has the
    rotated elements, which all heads share. Queries are linear functions of the input or, with
    `q_rank`, of a normalized projection to so many elements. `interleaved`: rotated pairs are
    neighbors in the file. `norm_eps` is for the two norms inside; `q_scale` multiplies queries and
    `kv_scale` latents. With `index` attention is sparse.
    """

    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    q_rank: int | None = None
    interleaved: bool = False
    norm_eps: float = 1e-6
    q_scale: float = 1.0
    kv_scale: float = 1.0
    index: SparseIndex | None = None

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
