"""The decoder's operations as our kernels; the large products are cuBLAS's, through torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile

import torch
from torch import Tensor

from swiftchat.cuda.gpu import DTYPE_NAMES
from swiftchat.cuda.ops.act_and_mul import act_and_mul
from swiftchat.cuda.ops.copy_blocks import copy_blocks
from swiftchat.cuda.ops.decode_attention import decode_attention, decode_attention_workspace
from swiftchat.cuda.ops.embedding import embed, gather_rows
from swiftchat.cuda.ops.linear_layout import MAX_GEMV_ROWS
from swiftchat.cuda.ops.moe import (
    expert_down,
    expert_down_fits,
    expert_gate_up,
    expert_gate_up_fits,
    route,
)
from swiftchat.cuda.ops.norm import add_norm, norm
from swiftchat.cuda.ops.prefill_attention import prefill_attention
from swiftchat.cuda.ops.rotary import HeadNorm, head_norm_fits, rotary
from swiftchat.cuda.quantized_kv import KVScales
from swiftchat.engine.linear.plain_gpu import GpuPlainWeight, LinearKernels
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.model.attention import alibi_slopes
from swiftchat.engine.model.decoder import LayerWeights
from swiftchat.engine.model.kv_cache import KVCache, LayerKV
from swiftchat.engine.model.moe import Experts, mixture, shared_part
from swiftchat.engine.model.norms import norm_heads_
from swiftchat.engine.model.rope import cos_sin_table
from swiftchat.engine.schedule.batch import Batch, padded_rows
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.parallel.tensor_parallel import Shard


@dataclass(frozen=True)
class CudaPlan:
    """A batch on the device; all int32.

    `ids`, `positions` and `slots` [n]; `block_tables` [num_seqs, max_blocks] and `context_lens`
    [num_seqs]. The first `num_decode` sequences have one token each; the others' begin at
    `query_starts` [num_seqs - num_decode + 1] of the tokens that follow, at most
    `max_num_tokens` a sequence. `logits_indices` None means all rows.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    block_tables: Tensor
    context_lens: Tensor
    num_decode: int
    query_starts: Tensor | None = None
    max_num_tokens: int = 1
    logits_indices: Tensor | None = None


def kernels_cover(config: ModelConfig, dtype: torch.dtype, kv_dtype: str = "auto") -> bool:
    """Whether there is a kernel for everything this model does; else torch's path runs it.

    Partial, interleaved and scaled rotary embeddings are in the order of the weights and the
    table of angles, and so nothing of their own.
    """
    return (
        not config.expert_bias
        and not config.attention_sinks
        and config.prefix_lm is None
        and dtype in DTYPE_NAMES
        and config.head_dim % 8 == 0
        and config.head_dim <= 256
        and (kv_dtype == "auto" or _keeps_codes(config.head_dim, dtype))
    )


def _keeps_codes(head_dim: int, dtype: torch.dtype) -> bool:
    """Whether the kernels write and read a cache in 8 bits of heads of this size."""
    return dtype != torch.float32 and head_dim % 16 == 0 and head_norm_fits(head_dim, head_dim)


def stored(kv: LayerKV) -> tuple[Tensor, KVScales | None]:
    """A layer's cache as the kernels take it."""
    return (kv, None) if isinstance(kv, Tensor) else (kv.codes, KVScales(kv.form, kv.factors))


class CudaOps:
    """The operations of a model, or a rank's share of it, on one GPU, as `decoder.Ops` has them."""

    heads_first = True

    def __init__(
        self, kernels: LinearKernels, share: Shard, ctx_size_tokens: int, max_num_seqs: int
    ) -> None:
        config, gpu = share.local_config, kernels.gpu
        # cuBLAS may otherwise add bf16 partial sums in bf16.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        self.gpu = gpu
        self._angles = [
            cos_sin_table(rope, config.head_dim, ctx_size_tokens, gpu.device)
            for rope in (config.rope, config.local_rope)
            if rope is not None
        ]
        self.alibi_slopes: Tensor | None = None
        if config.alibi:
            slopes = alibi_slopes(share.config)[slice(*share.heads)]
            self.alibi_slopes = slopes.to(gpu.device)
        self.attention_workspace = decode_attention_workspace(
            gpu, padded_rows(max_num_seqs), config.num_heads, config.head_dim
        )
        self.linear_workspace = kernels.workspace
        self._kernels = kernels
        self.scale = config.attention_scale
        self.softcap = config.attention_softcap or 0.0
        self.norm_offset = float(config.norm_unit_offset)
        self._addresses: dict[int, tuple[Tensor, Tensor] | None] = {}
        self.first_id = share.vocab[0]  # of the embeddings that are here
        self._config = config

    def plan(self, batch: Batch, cache: KVCache) -> CudaPlan:
        """One copy brings the whole batch. Single tokens must come first, as the scheduler
        orders them; a single token after a longer row is computed like one."""
        spans = batch.spans
        num_decode = sum(1 for _ in takewhile(lambda span: span.num_tokens == 1, spans))
        rest = spans[num_decode:]
        used = [span.block_table[: -(-span.context_len // cache.block_size)] for span in spans]
        width = max(len(table) for table in used)
        parts: list[Sequence[int]] = [
            batch.ids,
            batch.positions,
            batch.slot_mapping,
            [block for table in used for block in table + [0] * (width - len(table))],
            [span.context_len for span in spans],
            list(accumulate((span.num_tokens for span in rest), initial=0)),
            batch.logits_indices,
        ]
        # Each part begins at a multiple of 16 bytes.
        padded = [[*part, *([0] * (-len(part) % 4))] for part in parts]
        packed = torch.tensor([v for part in padded for v in part], dtype=torch.int32)
        on_device = torch.split(packed.to(self.gpu.device), [len(part) for part in padded])
        ids, positions, slots, tables, lens, starts, rows = (
            tensor[: len(part)] for tensor, part in zip(on_device, parts, strict=True)
        )
        everything = len(batch.logits_indices) == len(batch.ids)
        return CudaPlan(
            ids,
            positions,
            slots,
            tables.view(len(spans), width),
            lens,
            num_decode,
            starts,
            max((span.num_tokens for span in rest), default=0),
            None if everything else rows,
        )

    def embed(self, plan: CudaPlan, table: LinearWeight) -> Tensor:
        x = torch.empty(len(plan.ids), table.shape[1], device=self.gpu.device)
        (matrix,) = table.kernel_matrices
        embed(self.gpu, plan.ids, matrix, x, first_id=self.first_id)
        return x

    def norm_(self, x: Tensor, delta: Tensor | None, weight: Tensor, bias: Tensor | None) -> Tensor:
        if delta is not None and delta.dtype != weight.dtype:  # a mixture's is fp32
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

    def add_normed_(self, x: Tensor, delta: Tensor, weight: Tensor) -> None:
        eps = self._config.norm_eps
        add_norm(self.gpu, x, delta, weight, eps, weight_offset=self.norm_offset)

    def linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None) -> Tensor:
        return weight.matmul(x, bias)

    def cos_sin(self, layer: int) -> Tensor | None:
        """The angles a layer rotates by, fp32 [positions, head_dim]; None: it does not."""
        if not self._angles or layer in self._config.unrotated_layers:
            return None
        # Of two tables, the second is for the layers that have a window.
        return self._angles[-1 if self.window(layer) else 0]

    def window(self, layer: int) -> int:
        """How many of the last tokens a layer sees; 0: all."""
        return self._config.window(layer) or 0

    def head_norm(self, norms: tuple[Tensor, Tensor] | None) -> HeadNorm | None:
        """What `rotary` norms queries and keys by; None: nothing, or it cannot."""
        size = self._config.head_dim
        if norms is None or self._config.qk_norm != "head" or not head_norm_fits(size, size):
            return None
        return HeadNorm(*norms, self._config.norm_eps, self.norm_offset)

    def attend(
        self,
        plan: CudaPlan,
        layer: int,
        qkv: Tensor,
        kv: LayerKV,
        norms: tuple[Tensor, Tensor] | None,
        sinks: Tensor | None,
    ) -> Tensor:
        assert sinks is None  # see `kernels_cover`
        cache, kv_scales = stored(kv)
        config, split, window = self._config, plan.num_decode, self.window(layer)
        head_norm = self.head_norm(norms)
        if norms is not None and head_norm is None:
            norm_heads_(qkv, *norms, config)
        heads = qkv.view(len(qkv), -1, config.head_dim)
        rotary(
            self.gpu,
            heads,
            cache,
            cos_sin=self.cos_sin(layer),
            positions=plan.positions,
            slot_mapping=plan.slots,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            norm=head_norm,
            kv_scales=kv_scales,
        )
        q = heads[:, : config.num_heads]
        out = q.new_empty(q.shape)
        if split:
            decode_attention(
                self.gpu,
                q[:split],
                cache,
                block_tables=plan.block_tables[:split],
                context_lens=plan.context_lens[:split],
                scale=self.scale,
                out=out[:split],
                workspace=self.attention_workspace,
                window=window,
                softcap=self.softcap,
                alibi_slopes=self.alibi_slopes,
                kv_scales=kv_scales,
            )
        if split < len(plan.context_lens):
            assert plan.query_starts is not None
            # Slices of int32 rows need not begin at 16 bytes; these kernels read single numbers.
            prefill_attention(
                self.gpu,
                q[split:],
                cache,
                block_tables=plan.block_tables[split:].clone(),
                query_starts=plan.query_starts,
                context_lens=plan.context_lens[split:].clone(),
                max_num_tokens=plan.max_num_tokens,
                scale=self.scale,
                out=out[split:],
                window=window,
                softcap=self.softcap,
                alibi_slopes=self.alibi_slopes,
                kv_scales=kv_scales,
            )
        return out.view(len(qkv), -1)

    def gate(self, gate_up: Tensor) -> Tensor:
        gated = self._config.gated
        out = gate_up.new_empty(len(gate_up), gate_up.shape[1] // (2 if gated else 1))
        act_and_mul(self.gpu, gate_up, out, self._config.activation, gated=gated)
        return out

    def mixture(self, layer: int, x: Tensor, experts: Experts) -> Tensor:
        """As `Ops` says; few rows without the host, which a graph needs."""
        addresses = self._addresses_of(layer, experts) if len(x) <= MAX_GEMV_ROWS else None
        if addresses is None:
            return mixture(x, experts, self._config, self)
        config, n = self._config, len(x)
        chosen, inner = config.experts_per_token, config.expert_size
        scores = GpuPlainWeight(experts.router, self._kernels).matmul_fp32(x)
        ids = torch.empty(n, chosen, dtype=torch.int32, device=x.device)
        shares, out = torch.empty(n, chosen, device=x.device), torch.empty(x.shape, device=x.device)
        made = x.new_empty(n, chosen, inner)
        gate_up, down = addresses
        route(self.gpu, scores, ids, shares, renormalize=config.normalized_experts)
        expert_gate_up(self.gpu, x, gate_up, ids, made, config.activation)
        expert_down(self.gpu, made, down, ids, shares, out)
        shared = shared_part(x, experts, self)
        return out if shared is None else out.add_(shared)

    def max_graph_rows(self, layers: Sequence[LayerWeights]) -> int | None:
        """How many rows these layers can be computed for without the host; None: any number."""
        mixtures = [(i, layer.experts) for i, layer in enumerate(layers) if layer.experts]
        if not mixtures:
            return None
        return MAX_GEMV_ROWS if all(self._addresses_of(*each) for each in mixtures) else 0

    def _addresses_of(self, layer: int, experts: Experts) -> tuple[Tensor, Tensor] | None:
        """Where a layer's experts have their matrices, gate and up, and down; int64 [experts].

        None for those that the kernels do not read: packed ones, and of an odd width.
        """
        if layer not in self._addresses:
            self._addresses[layer] = self._found(experts)
        return self._addresses[layer]

    def _found(self, experts: Experts) -> tuple[Tensor, Tensor] | None:
        matrices = [(expert.gate_up, expert.down) for expert in experts.each]
        if any(w.is_quantized or not w.kernel_matrices for both in matrices for w in both):
            return None
        gate_up, down = ([w.tensors[0] for w in some] for some in zip(*matrices, strict=True))
        if not all(tensor.is_contiguous() for tensor in (*gate_up, *down)):
            return None
        chosen, (_, inner) = self._config.experts_per_token, down[0].shape
        k, itemsize = gate_up[0].shape[1], down[0].itemsize
        if not (
            expert_gate_up_fits(self.gpu, k, itemsize)
            and expert_down_fits(self.gpu, inner, chosen, itemsize)
        ):
            return None
        at = torch.tensor([[m.data_ptr() for m in each] for each in (gate_up, down)])
        both = at.to(self.gpu.device)
        return both[0], both[1].clone()

    def last_rows(self, plan: CudaPlan, x: Tensor) -> Tensor:
        if plan.logits_indices is None:
            return x
        if x.shape[1] * x.itemsize % 4:
            return x[plan.logits_indices]
        words = x.view(torch.float32)  # the kernel only moves bytes
        out = words.new_empty(len(plan.logits_indices), words.shape[1])
        gather_rows(self.gpu, words, plan.logits_indices, out)
        return out.view(x.dtype)

    def logits(self, x: Tensor, lm_head: LinearWeight) -> Tensor:
        return lm_head.matmul_fp32(x)

    def copy_blocks(self, cache: KVCache, copies: Sequence[tuple[int, int]]) -> None:
        together: list[tuple[int, int]] = []  # a launch makes its copies in no order
        for source, destination in copies:
            if any(destination == earlier for earlier, _ in together):
                self._copy(cache, together)
                together = []
            if source != destination:
                together.append((source, destination))
        self._copy(cache, together)

    def _copy(self, cache: KVCache, copies: Sequence[tuple[int, int]]) -> None:
        if copies:
            pairs = torch.tensor(copies, dtype=torch.int32, device=self.gpu.device)
            for tensor in cache.tensors:
                copy_blocks(self.gpu, tensor, pairs)
