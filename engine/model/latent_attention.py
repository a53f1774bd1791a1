"""The weights of multi-head latent attention: DeepSeek-V2 (arXiv:2405.04434), section 2.1."""

from dataclasses import dataclass

from torch import Tensor

from swiftchat.engine.linear.weight import LinearWeight


@dataclass(frozen=True)
class LatentWeights:
    """The weights of one layer between the input projections and the attention.

    `kv_b` [num_heads, nope_dim + value_dim, kv_rank] makes keys and values of latents. `q_b` makes
    queries of the normalized projections with `q_rank`; None: they are projected directly.
    `index_q` makes the queries of a sparse index of the same projections; the norm of its keys is a
    LayerNorm.
    """

    kv_norm: Tensor
    kv_b: Tensor
    q_norm: Tensor | None = None
    q_b: LinearWeight | None = None
    index_q: LinearWeight | None = None
    index_norm: Tensor | None = None
    index_norm_bias: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """All but those of `matrices`."""
        norms = [self.kv_norm, self.q_norm, self.index_norm, self.index_norm_bias]
        return [self.kv_b, *(norm for norm in norms if norm is not None)]

    @property
    def matrices(self) -> list[LinearWeight]:
        return [matrix for matrix in (self.q_b, self.index_q) if matrix is not None]
