"""The decoder's operations as the project's kernels; large GEMMs are cuBLAS's, through torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile

import torch
from torch import Tensor

from swiftchat.cuda.ops.act_and_mul import KINDS, act_and_mul
from swiftchat.cuda.ops.copy_blocks import copy_blocks
from swiftchat.cuda.ops.decode_attention import decode_attention, decode_attention_workspace
from swiftchat.cuda.ops.embedding import embed, gather_rows
from swiftchat.cuda.ops.norm import add_norm, norm
from swiftchat.cuda.ops.prefill_attention import prefill_attention
from swiftchat.cuda.ops.rotary import HeadNorm, head_norm_fits, rotary
from swiftchat.cuda.ops.rotate_heads import rotate_heads
from swiftchat.cuda.quantized_kv import KVScales, scheme_of
from swiftchat.engine.linear.plain_gpu import LinearKernels
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.mixers.weights import MixerWeights
from swiftchat.engine.model import activations
from swiftchat.engine.model.attention import alibi_slopes
from swiftchat.engine.model.cuda_latent import LatentKernels
from swiftchat.engine.model.cuda_mixers import MixerKernels, StatePlan
from swiftchat.engine.model.cuda_moe import ExpertKernels
from swiftchat.engine.model.elementwise import Elementwise
from swiftchat.engine.model.kv_cache import KVCache, LayerKV, independent_copies
from swiftchat.engine.model.latent_attention import LatentWeights
from swiftchat.engine.model.moe import Experts, moe, shared_expert
from swiftchat.engine.model.norms import norm_heads_
from swiftchat.engine.model.per_layer import PerLayerBranch, PerLayerTable
from swiftchat.engine.model.rope import cos_sin_table, query_factor_table
from swiftchat.engine.model.torch_ops import TorchPlan
from swiftchat.engine.model.weights import LayerWeights
from swiftchat.engine.schedule.batch import Batch, Span, padded_rows
from swiftchat.weights.parallel.tensor_parallel import Shard


@dataclass(frozen=True)
class DecodeRows:
    """Sequences with one token each: `block_tables` [n, max_blocks] and `context_lens` [n]."""

    block_tables: Tensor
    context_lens: Tensor


@dataclass(frozen=True)
class PrefillRows:
    """Sequences with several tokens each.

    `block_tables` [n, max_blocks] and `context_lens` [n]. The tokens of sequence i are
    `query_starts[i] : query_starts[i + 1]` of all prefill tokens, at most `max_num_tokens`.
    """

    block_tables: Tensor
    context_lens: Tensor
    query_starts: Tensor
    max_num_tokens: int


@dataclass(frozen=True)
class CudaPlan:
    """A batch on the device; all int32.

    `ids`, `positions` and `slot_mapping` have an element for each token; a token with a slot below
    0 is not stored. The tokens of the `decode` rows come first, then those of the `prefill` rows.
    `logits_indices` None means all tokens. `states` are those of a model with mixers, `latents` is
    for latent attention of prompts.
    """

    ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    decode: DecodeRows | None = None
    prefill: PrefillRows | None = None
    logits_indices: Tensor | None = None
    states: StatePlan | None = None
    latents: TorchPlan | None = None

    @property
    def num_decode(self) -> int:
        return 0 if self.decode is None else len(self.decode.context_lens)


def kernel_kv(kv: LayerKV) -> tuple[Tensor, KVScales | None]:
    """Return a layer's cache for the kernels: its tensor, and its scales if it is quantized."""
    if isinstance(kv, Tensor):
        return kv, None
    return kv.values, KVScales(kv.scheme, kv.scales, kv.key_bits, kv.value_bits)


class CudaOps(Elementwise):
    """The operations of a model, or of a rank's shard, on one GPU; see `Ops`."""

    def __init__(
        self, kernels: LinearKernels, shard: Shard, ctx_size_tokens: int, max_num_seqs: int
    ) -> None:
        config, gpu = shard.local_config, kernels.gpu
        # cuBLAS may otherwise add bf16 partial sums in bf16.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        self.gpu = gpu
        self.heads_first = config.latent is None  # torch computes latent attention of prompts
        width = config.head_dim if config.latent is None else config.latent.rope_dim
        self._cos_sin_tables = [
            cos_sin_table(rope, width, ctx_size_tokens, gpu.device)
            for rope in (config.rope, config.local_rope)
            if rope is not None
        ]
        self._query_factors = query_factor_table(config.query_growth, ctx_size_tokens, gpu.device)
        self.alibi_slopes: Tensor | None = None
        if config.alibi:
            slopes = alibi_slopes(shard.config)[slice(*shard.heads)]
            self.alibi_slopes = slopes.to(gpu.device)
        self.attention_workspace = decode_attention_workspace(
            gpu, padded_rows(max_num_seqs), config.num_heads, config.head_dim
        )
        self.linear_workspace = kernels.workspace
        self._latent: LatentKernels | None = None
        if config.latent is not None:
            self._latent = LatentKernels(gpu, shard, ctx_size_tokens)
        self.experts = ExpertKernels(kernels, config)
        self.mixers = MixerKernels(gpu, config)
        self.scale = config.attention_scale
        self.softcap = config.attention_softcap or 0.0
        self.norm_offset = float(config.norm_unit_offset and config.norm == "rms")
        self.first_id = shard.vocab[0]  # of this rank's embeddings
        self._config = config

    def plan(self, batch: Batch, cache: KVCache) -> CudaPlan:
        """Upload the whole batch in one copy.

        The scheduler puts rows of one token first; one after a longer row is computed as prefill.
        """
        spans, size = batch.spans, cache.block_size
        num_decode = sum(1 for _ in takewhile(lambda span: span.num_tokens == 1, spans))
        rows, rest = spans[:num_decode], spans[num_decode:]
        parts: list[Sequence[int]] = [
            batch.ids,
            batch.positions,
            batch.slot_mapping,
            _block_tables(rows, size),
            [span.context_len for span in rows],
            _block_tables(rest, size),
            [span.context_len for span in rest],
            list(accumulate((span.num_tokens for span in rest), initial=0)),
            batch.logits_indices,
        ]
        # Each part begins at a multiple of 16 bytes, as kernels require.
        padded = [[*part, *([0] * (-len(part) % 4))] for part in parts]
        packed = torch.tensor([v for part in padded for v in part], dtype=torch.int32)
        on_device = torch.split(packed.to(self.gpu.device), [len(part) for part in padded])
        ids, positions, slot_mapping, tables, lens, rest_tables, rest_lens, starts, indices = (
            tensor[: len(part)] for tensor, part in zip(on_device, parts, strict=True)
        )
        decode = DecodeRows(tables.view(len(rows), -1), lens) if rows else None
        prefill: PrefillRows | None = None
        if rest:
            most = max(span.num_tokens for span in rest)
            prefill = PrefillRows(rest_tables.view(len(rest), -1), rest_lens, starts, most)
        has_all_logits = len(batch.logits_indices) == len(batch.ids)
        logits_indices, states = None if has_all_logits else indices, None
        if self._config.mixer is not None:
            states = self.mixers.plan(spans, num_decode, positions, cache.states.layers)
        latents = None if self._latent is None else self._latent.plan(batch, cache)
        return CudaPlan(
            ids, positions, slot_mapping, decode, prefill, logits_indices, states, latents
        )

    def embed(self, plan: CudaPlan, table: LinearWeight) -> Tensor:
        x = torch.empty(len(plan.ids), table.shape[1], device=self.gpu.device)
        (matrix,) = table.kernel_matrices
        embed(self.gpu, plan.ids, matrix, x, first_id=self.first_id)
        return x

    def norm_(self, x: Tensor, delta: Tensor | None, weight: Tensor, bias: Tensor | None) -> Tensor:
        if delta is not None and delta.dtype != weight.dtype:  # an MoE's is fp32
            x += delta
            delta = None
        out = torch.empty_like(x, dtype=weight.dtype)
        norm(
            self.gpu,
            x,
            weight,
            self._config.norm_eps,
            out,
            delta=delta,
            shift=bias,
            layer_norm=self._config.norm == "layer",
            weight_offset=self.norm_offset,
        )
        return out

    def add_norm_(self, x: Tensor, delta: Tensor, weight: Tensor) -> None:
        eps = self._config.norm_eps
        add_norm(self.gpu, x, delta, weight, eps, weight_offset=self.norm_offset)

    def linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None) -> Tensor:
        return weight.matmul(x, bias)

    def cos_sin(self, layer: int) -> Tensor | None:
        """Return a layer's cosines and sines, fp32 [num_positions, head_dim]; None: no rotation."""
        if not self._cos_sin_tables or layer in self._config.unrotated_layers:
            return None
        # If there are two tables, the second is for the layers with a window.
        return self._cos_sin_tables[-1 if self.window(layer) else 0]

    def query_factors(self, layer: int) -> Tensor | None:
        """Return what a layer's queries are multiplied by, fp32 [num_positions]; None: by 1."""
        return None if self._config.growth(layer) is None else self._query_factors

    def window(self, layer: int) -> int:
        """Return the number of last tokens that a layer attends to; 0: all."""
        return self._config.window(layer) or 0

    def head_norm(self, norms: tuple[Tensor, Tensor] | None) -> HeadNorm | None:
        """Return the query and key norms that `rotary` computes; None: no norms, or it cannot."""
        size = self._config.head_dim
        if norms is None or self._config.qk_norm != "head" or not head_norm_fits(size, size):
            return None
        after = self._config.qk_norm_after_rope
        return HeadNorm(*norms, self._config.norm_eps, self.norm_offset, after)

    def attend(
        self,
        plan: CudaPlan,
        layer: int,
        qkv: Tensor,
        kv: LayerKV,
        norms: tuple[Tensor, Tensor] | None,
        sinks: Tensor | None,
        latent: LatentWeights | None,
    ) -> Tensor:
        if latent is not None:
            return self._attend_to_latents(plan, layer, qkv, kv, latent)
        cache, kv_scales = kernel_kv(kv)
        config, head_norm = self._config, self.head_norm(norms)
        if norms is not None and head_norm is None:
            norm_heads_(qkv, *norms, config)
        heads = qkv.view(len(qkv), -1, config.head_dim)
        rotary(
            self.gpu,
            heads,
            cache,
            cos_sin=self.cos_sin(layer),
            positions=plan.positions,
            slot_mapping=plan.slot_mapping,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            norm=head_norm,
            query_factors=self.query_factors(layer),
            kv_scales=kv_scales,
        )
        q = heads[:, : config.num_heads]
        out, split = q.new_empty(q.shape), plan.num_decode
        if plan.decode is not None:
            decode_attention(
                self.gpu,
                q[:split],
                cache,
                block_tables=plan.decode.block_tables,
                context_lens=plan.decode.context_lens,
                scale=self.scale,
                out=out[:split],
                workspace=self.attention_workspace,
                window=self.window(layer),
                softcap=self.softcap,
                alibi_slopes=self.alibi_slopes,
                sinks=sinks,
                kv_scales=kv_scales,
            )
        if plan.prefill is not None:
            prefill_attention(
                self.gpu,
                q[split:],
                cache,
                block_tables=plan.prefill.block_tables,
                query_starts=plan.prefill.query_starts,
                context_lens=plan.prefill.context_lens,
                max_num_tokens=plan.prefill.max_num_tokens,
                scale=self.scale,
                out=out[split:],
                window=self.window(layer),
                softcap=self.softcap,
                alibi_slopes=self.alibi_slopes,
                sinks=sinks,
                kv_scales=kv_scales,
            )
            if scheme_of(kv_scales) == "int5":
                rotate_heads(self.gpu, out[split:])
        return out.view(len(qkv), -1)

    def _attend_to_latents(
        self, plan: CudaPlan, layer: int, projected: Tensor, kv: LayerKV, weights: LatentWeights
    ) -> Tensor:
        assert self._latent is not None and isinstance(kv, Tensor)
        if plan.latents is not None:
            return self._latent.attend_by_torch(plan.latents, layer, projected, kv, weights)
        assert plan.decode is not None
        return self.decode_latents(
            layer, projected, kv, weights, plan.positions, plan.slot_mapping, plan.decode
        )

    def decode_latents(
        self,
        layer: int,
        projected: Tensor,
        kv: LayerKV,
        weights: LatentWeights,
        positions: Tensor,
        slot_mapping: Tensor,
        rows: DecodeRows,
    ) -> Tensor:
        """Return latent attention of one token of each sequence: [n, num_heads * value_dim]."""
        cos_sin = self.cos_sin(layer)
        assert self._latent is not None and isinstance(kv, Tensor) and cos_sin is not None
        return self._latent.decode(
            projected,
            kv,
            weights,
            cos_sin=cos_sin,
            positions=positions,
            slot_mapping=slot_mapping,
            block_tables=rows.block_tables,
            context_lens=rows.context_lens,
        )

    def mix(self, plan: CudaPlan, layer: int, x: Tensor, mixer: MixerWeights) -> Tensor:
        assert plan.states is not None
        projected = mixer.project_in.matmul(x, mixer.project_in_bias)
        out = self.mixers.mix(plan.states, layer, projected, mixer)
        return mixer.project_out.matmul(out, mixer.project_out_bias)

    def act_and_mul(self, gate_up: Tensor) -> Tensor:
        config, gated = self._config, self._config.gated
        is_plain = config.gate_limit is None and config.gate_scale == 1.0
        if config.interleaved_gate or not is_plain or config.activation not in KINDS:
            return activations.act_and_mul(gate_up, config)
        out = gate_up.new_empty(len(gate_up), gate_up.shape[1] // (2 if gated else 1))
        act_and_mul(self.gpu, gate_up, out, config.activation, gated=gated)
        return out

    def per_layer_embeddings(
        self, plan: CudaPlan, x: Tensor, table: PerLayerTable
    ) -> Sequence[Tensor]:
        raise AssertionError("no kernel computes them")  # see `coverage`

    def per_layer_branch(self, x: Tensor, own: Tensor, branch: PerLayerBranch) -> Tensor:
        raise AssertionError("no kernel computes them")  # see `coverage`

    def sparsify_(self, gate_up: Tensor, deviations: float) -> None:
        raise AssertionError("no kernel sets gates to 0")  # see `coverage`

    def moe(
        self, layer: int, x: Tensor, experts: Experts, router_input: Tensor | None = None
    ) -> Tensor:
        if router_input is not None or not self.experts.support(layer, experts):
            return moe(x, experts, self._config, self, router_input)
        out = self.experts.compute(layer, x, experts)
        shared = shared_expert(x, experts, self)
        return out if shared is None else out.add_(shared)

    def computes_experts(self, layers: Sequence[LayerWeights]) -> bool:
        """Return whether the kernels compute the experts of all layers, without the host."""
        moe_layers = [(i, layer.experts) for i, layer in enumerate(layers) if layer.experts]
        return all(self.experts.support(*each) for each in moe_layers)

    def logits_rows(self, plan: CudaPlan, x: Tensor) -> Tensor:
        if plan.logits_indices is None:
            return x
        if x.shape[1] * x.itemsize % 4:
            return x[plan.logits_indices]
        words = x.view(torch.float32)  # the kernel copies 4-byte words
        out = words.new_empty(len(plan.logits_indices), words.shape[1])
        gather_rows(self.gpu, words, plan.logits_indices, out)
        return out.view(x.dtype)

    def copy_blocks(self, cache: KVCache, copies: Sequence[tuple[int, int]]) -> None:
        for together in independent_copies(copies):
            pairs = torch.tensor(together, dtype=torch.int32, device=self.gpu.device)
            for tensor in cache.tensors:
                copy_blocks(self.gpu, tensor, pairs)


def _block_tables(spans: Sequence[Span], block_size: int) -> list[int]:
    """Return the used blocks of each sequence, padded to the same number."""
    used = [span.block_table[: -(-span.context_len // block_size)] for span in spans]
    width = max(map(len, used), default=0)
    return [block for table in used for block in table + [0] * (width - len(table))]
