"""Multi-head latent attention: decode steps and short chunks by kernels, others by torch."""

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.attention.latent_attention import (
    latent_attention,
    latent_rotary,
)
from swiftchat.engine.gpu.inputs.device_batch import DeviceBatch
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.model.latent_attention import LatentWeights
from swiftchat.engine.model.ops import AttentionInputs
from swiftchat.engine.reference.latent_attention import rms_norm
from swiftchat.engine.reference.ops import TorchOps, TorchPlan
from swiftchat.engine.schedule.batch import Batch
from swiftchat.weights.architectures.parts.latent import LatentAttention
from swiftchat.weights.parallel.tensor_parallel import Shard


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

    def attend(
        self, plan: DeviceBatch, projected: Tensor, inputs: AttentionInputs, cos_sin: Tensor | None
    ) -> Tensor:
        """As `Ops.attend`, with the layer's cosines and sines.

        The kernels compute one token of each sequence, absorbed: the matrix that makes keys is
        applied to the queries, that of the values to the output.
        """
        if plan.latents is not None:
            return self._torch.attend(plan.latents, projected, inputs)
        latent, weights, rows = self._config.attention.latent, inputs.latent, plan.decode
        assert latent is not None and weights is not None and rows is not None
        assert not self._config.attention.scores.first_key
        q, cache = self._store(plan, projected, inputs, cos_sin)
        n, num_heads, nope = len(q), q.shape[1], latent.nope_dim
        out = q.new_empty(n, num_heads, latent.kv_rank)
        latent_attention(
            self._gpu,
            torch.bmm(q[..., :nope].transpose(0, 1), weights.kv_b[:, :nope]),
            q[..., nope:],
            cache,
            block_tables=rows.block_tables,
            context_lens=rows.context_lens,
            scale=self._config.attention.scores.scale * latent.q_scale,
            out=out,
        )
        values = torch.bmm(out.transpose(0, 1), weights.kv_b[:, nope:].transpose(1, 2))
        return values.transpose(0, 1).reshape(n, -1)

    def store(
        self, plan: DeviceBatch, projected: Tensor, inputs: AttentionInputs, cos_sin: Tensor | None
    ) -> None:
        """As `Ops.store`."""
        if plan.latents is not None:
            self._torch.store(plan.latents, projected, inputs)
        else:
            self._store(plan, projected, inputs, cos_sin)

    def _store(
        self, plan: DeviceBatch, projected: Tensor, inputs: AttentionInputs, cos_sin: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Store latents and keys; return the rotated queries [n, num_heads, head_dim], the cache.

        The cache is as the kernels read it.
        """
        latent, weights, kv = self._config.attention.latent, inputs.latent, inputs.kv
        assert latent is not None and weights is not None and isinstance(kv, Tensor)
        q, row = self._queries(projected, latent, weights)
        cache = kv.transpose(1, 2)  # the same memory: a token has a single row
        latent_rotary(
            self._gpu,
            q,
            row,
            cache,
            norm_weight=weights.kv_norm,
            cos_sin=cos_sin,
            positions=plan.positions,
            slot_mapping=plan.slot_mapping,
            interleaved=latent.interleaved,
            eps=latent.norm_eps,
            kv_scale=latent.kv_scale,
        )
        return q, cache

    def _queries(
        self, projected: Tensor, config: LatentAttention, weights: LatentWeights
    ) -> tuple[Tensor, Tensor]:
        """Return the queries [n, num_heads, head_dim] and the projected rows of the cache."""
        q, row = projected.tensor_split((projected.shape[1] - config.key_dim,), 1)
        if weights.q_b is not None and weights.q_norm is not None:
            q = weights.q_b.matmul(rms_norm(q, weights.q_norm, config.norm_eps))
        return q.view(len(q), -1, config.head_dim), row
