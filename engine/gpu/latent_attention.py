"""Multi-head latent attention: decode steps and short chunks by kernels, others by torch."""

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.attention.latent_attention import (
    latent_attention,
    latent_attention_fits,
    latent_rotary,
)
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.model.latent_attention import LatentWeights
from swiftchat.engine.reference.latent_attention import rms_norm
from swiftchat.engine.reference.ops import TorchOps, TorchPlan
from swiftchat.engine.schedule.batch import Batch
from swiftchat.weights.architectures.parts.attention import Attention
from swiftchat.weights.architectures.parts.latent import LatentAttention
from swiftchat.weights.parallel.tensor_parallel import Shard


def latent_kernels_cover(attention: Attention, dtype: torch.dtype) -> bool:
    """Return whether the kernels compute latent attention, or it has no latent."""
    latent = attention.latent
    if latent is None:
        return True
    return (
        latent.index is None
        and latent_attention_fits(dtype, latent.kv_rank, latent.rope_dim)
        and latent.nope_dim % 8 == 0
        and attention.scores.softcap is None
    )


class LatentKernels:
    """The latent attention of a model, or of a rank's shard, on one GPU."""

    def __init__(self, gpu: Gpu, shard: Shard, ctx_size_tokens: int) -> None:
        self._gpu, self._config = gpu, shard.local_config
        self._torch = TorchOps(shard.local_config, ctx_size_tokens, gpu.device, shard)

    def plan(self, batch: Batch, cache: KVCache) -> TorchPlan | None:
        """Return the plan of a batch with prompts; None for decode steps, as kernels compute.

        The kernels see all keys, so with a first key there always is a plan.
        """
        first_key = self._config.attention.scores.first_key
        if all(span.num_tokens == 1 for span in batch.spans) and not first_key:
            return None
        return self._torch.plan(batch, cache)

    def attend_by_torch(
        self, plan: TorchPlan, layer: int, projected: Tensor, kv: Tensor, weights: LatentWeights
    ) -> Tensor:
        """As `Ops.attend`."""
        return self._torch.attend(plan, layer, projected, kv, None, None, weights)

    def store_by_torch(
        self, plan: TorchPlan, layer: int, projected: Tensor, kv: Tensor, weights: LatentWeights
    ) -> None:
        """As `Ops.store`."""
        self._torch.store(plan, layer, projected, kv, None, weights)

    def decode(
        self,
        projected: Tensor,
        kv: Tensor,
        weights: LatentWeights,
        *,
        cos_sin: Tensor | None,
        positions: Tensor,
        slot_mapping: Tensor,
        block_tables: Tensor,
        context_lens: Tensor,
    ) -> Tensor:
        """Attention of one token of each sequence: [n, num_heads * value_dim].

        Absorbed: the matrix that makes keys is applied to the queries, that of the values to the
        output.
        """
        latent = self._config.attention.latent
        assert latent is not None and not self._config.attention.scores.first_key
        q = self.store(
            projected,
            kv,
            weights,
            cos_sin=cos_sin,
            positions=positions,
            slot_mapping=slot_mapping,
        )
        n, num_heads, nope = len(q), q.shape[1], latent.nope_dim
        out = q.new_empty(n, num_heads, latent.kv_rank)
        latent_attention(
            self._gpu,
            torch.bmm(q[..., :nope].transpose(0, 1), weights.kv_b[:, :nope]),
            q[..., nope:],
            kv.transpose(1, 2),
            block_tables=block_tables,
            context_lens=context_lens,
            scale=self._config.attention.scores.scale * latent.q_scale,
            out=out,
        )
        values = torch.bmm(out.transpose(0, 1), weights.kv_b[:, nope:].transpose(1, 2))
        return values.transpose(0, 1).reshape(n, -1)

    def store(
        self,
        projected: Tensor,
        kv: Tensor,
        weights: LatentWeights,
        *,
        cos_sin: Tensor | None,
        positions: Tensor,
        slot_mapping: Tensor,
    ) -> Tensor:
        """Store latents and keys; return the rotated queries [n, num_heads, head_dim]."""
        latent = self._config.attention.latent
        assert latent is not None
        q, row = self._queries(projected, latent, weights)
        latent_rotary(
            self._gpu,
            q,
            row,
            kv.transpose(1, 2),  # the same memory: a token has a single row
            norm_weight=weights.kv_norm,
            cos_sin=cos_sin,
            positions=positions,
            slot_mapping=slot_mapping,
            interleaved=latent.interleaved,
            eps=latent.norm_eps,
            kv_scale=latent.kv_scale,
        )
        return q

    def _queries(
        self, projected: Tensor, config: LatentAttention, weights: LatentWeights
    ) -> tuple[Tensor, Tensor]:
        """Return the queries [n, num_heads, head_dim] and the projected rows of the cache."""
        q, row = projected.tensor_split((projected.shape[1] - config.key_dim,), 1)
        if weights.q_b is not None and weights.q_norm is not None:
            q = weights.q_b.matmul(rms_norm(q, weights.q_norm, config.norm_eps))
        return q.view(len(q), -1, config.head_dim), row
