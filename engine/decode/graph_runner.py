"""One token for every lane, from embedding to sampling: captured once, replayed for each step."""

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from swiftchat.cuda.ops.activation import activation
from swiftchat.cuda.ops.add_normed import add_normed
from swiftchat.cuda.ops.advance import advance
from swiftchat.cuda.ops.all_gather import all_gather
from swiftchat.cuda.ops.all_reduce import all_reduce
from swiftchat.cuda.ops.argmax import argmax, argmax_workspace
from swiftchat.cuda.ops.decode_attention import decode_attention
from swiftchat.cuda.ops.embed import embed
from swiftchat.cuda.ops.linear import (
    MAX_VECTORS,
    Norm,
    Rotation,
    linear,
    linear_gated,
    linear_residual,
    linear_rotate,
    linear_send,
    linear_takes,
)
from swiftchat.cuda.ops.penalties import penalties
from swiftchat.cuda.ops.rotary import head_norm_fits, rotary
from swiftchat.cuda.ops.sample import sample, sample_workspace
from swiftchat.cuda.packed_matrix import Matrix
from swiftchat.cuda.peer_memory import PeerBuffer
from swiftchat.engine.comm.gpu_communicator import GpuCommunicator, PeerBuffers
from swiftchat.engine.decode.decode_batch import DecodeBatch
from swiftchat.engine.linear.merged import MergedWeight, biases_of, parts_of
from swiftchat.engine.linear.quantized import Weight, for_kernels
from swiftchat.engine.model.cuda_ops import CudaOps, CudaPlan, stored
from swiftchat.engine.model.decoder import Decoder, LayerWeights, rounds_inputs
from swiftchat.engine.model.kv_cache import KVCache, LayerKV
from swiftchat.engine.schedule.scheduler import Sequence
from swiftchat.weights.architectures.config import ModelConfig

# Numbers of lanes that have a graph; the others use the next larger one.
SIZES = (1, 2, 4, 8, 16, 32, 64)


def near_llama(config: ModelConfig) -> bool:
    """Whether the fused kernels do all a model does.

    They cannot take LayerNorm into a product, nor what stands beside a layer's two branches.
    """
    size = config.head_dim
    return (
        config.norm == "rms"
        and config.norm_order in ("pre", "sandwich")
        and config.gated
        and not config.parallel_residual
        and not config.embedding_norm
        and not config.learned_positions
        and not config.lm_head_bias
        and not config.alibi
        and config.num_experts == 0
        and config.embedding_size is None
        and (config.qk_norm is None or (config.qk_norm == "head" and head_norm_fits(size, size)))
    )


class GraphRunner:
    """The decode steps of one model, for all numbers of lanes.

    Few vectors of a model near Llama go through five kernels a layer, each fused with its
    neighbors; norms of heads and of branches' outputs are one more each. More lanes than those
    take, and other models, use the decoder's own operations. Either way the result is a CUDA
    graph. One of several ranks sends its parts of the sums to the others out of the products.

    One of several stages has its part of a step in the graph. It begins, but for the first stage,
    with what is in `stream`, fp32 [lanes, hidden_size], and ends, but for the last, with what it
    leaves there. The last stage leaves the tokens, int32 [lanes], in `drawn`; `move_on` makes them
    the next to be computed, which a graph of all layers does itself.
    """

    def __init__(self, decoder: Decoder, ops: CudaOps, cache: KVCache, lanes: DecodeBatch) -> None:
        config, weights = decoder.config, decoder.weights
        self._decoder, self._ops, self._cache, self.lanes = decoder, ops, cache, lanes
        ranks = decoder.ranks
        self._peer_buffers: PeerBuffers | None = (
            ranks.peer_buffers if isinstance(ranks, GpuCommunicator) else None
        )
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        n, gpu = lanes.max_lanes, ops.gpu
        dtype, few = weights.dtype, min(n, MAX_VECTORS)

        def empty(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=gpu.device)

        # Rows that nobody uses are computed as well, and so have to be numbers.
        self.stream = torch.zeros(n, config.hidden_size, device=gpu.device)
        self._part = empty(few, config.hidden_size, dtype=torch.float32)
        self._norm_eps = config.norm_eps
        # A layer that does not rotate in its product leaves keys and values beside the queries.
        heads = config.num_heads + 2 * config.num_kv_heads
        self._queries = empty(few, config.num_heads, config.head_dim)
        self._heads = empty(few, heads, config.head_dim)
        self._attended = empty(few, config.num_heads, config.head_dim)
        self._inner = empty(few, config.intermediate_size)
        self._sums = torch.zeros(few, config.hidden_size, device=gpu.device)  # zero between uses
        self._logits = empty(n, config.vocab_size, dtype=torch.float32)
        self._values = empty(n, dtype=torch.float32)
        self._ids, self.drawn = (empty(n, dtype=torch.int32) for _ in range(2))
        self._argmax_workspace = argmax_workspace(gpu, n)
        self._sample_workspace = sample_workspace(gpu, n, config.vocab_size)

    def launch(self, num_lanes: int) -> None:
        """Start a step of the first lanes; the device is behind, and nothing is waited for."""
        self.prepare(num_lanes).replay()
        self.lanes.num_steps += 1

    def move_on(self, sequences: Seq[Sequence]) -> None:
        """Have the lanes' next step compute the newest token of each sequence.

        They are those of the last step, in its order, with the one token more that a stage drew;
        the device must be idle.
        """
        for lane, sequence in enumerate(sequences):
            self.lanes.extend(lane, sequence)
        newest = [sequence.tokens[-1] for sequence in sequences]
        self.drawn[: len(newest)].copy_(torch.tensor(newest, dtype=torch.int32))
        self._advance(len(newest))

    def prepare(self, num_lanes: int) -> torch.cuda.CUDAGraph:
        """The graph for so many lanes, captured now if there is none yet."""
        size = next(size for size in SIZES if size >= num_lanes)
        if size not in self._graphs:
            self._graphs[size] = self._capture(min(size, self.lanes.max_lanes))
        return self._graphs[size]

    def _capture(self, n: int) -> torch.cuda.CUDAGraph:
        """Record the step of n lanes.

        Its kernels are compiled together, and it is run once before, which loads them. Meanwhile
        nobody uses a lane: the blocks of those who did may be others' by now. Then all is put back.
        """
        lanes = self.lanes
        state = [
            lanes.tokens,
            lanes.positions,
            lanes.context_lens,
            lanes.slots,
            lanes.step,
            lanes.counts,
        ]
        saved = [tensor.clone() for tensor in state]
        lanes.context_lens.zero_()
        lanes.slots.fill_(-1)
        with self._ops.gpu.collecting() as specs:
            self.run(n)
            self._advance(n)
        self._ops.gpu.compile(specs)
        self.run(n)
        for tensor, before in zip(state, saved, strict=True):
            tensor.copy_(before)
        torch.cuda.synchronize(self._ops.gpu.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.run(n)
        return graph

    def run(self, n: int) -> None:
        """Launch the kernels of a step of n lanes, one by one."""
        lanes, gpu, stages = self.lanes, self._ops.gpu, self._decoder.stages
        logits = self._logits[:n]
        if self._is_fused(n):
            self._fused(n, logits)
        else:
            self._by_operations(n, logits)
        if not stages.is_last:
            return
        penalties(
            gpu,
            logits,
            lanes.counts[:n],
            lanes.repeat_penalty[:n],
            lanes.presence_penalty[:n],
            lanes.frequency_penalty[:n],
        )
        values, ids, drawn = self._values[:n], self._ids[:n], self.drawn[:n]
        argmax(gpu, logits, values, ids, self._argmax_workspace)
        sample(
            gpu,
            logits,
            values,
            ids,
            lanes.temperature[:n],
            lanes.top_k[:n],
            lanes.top_p[:n],
            lanes.min_p[:n],
            lanes.seeds[:n],
            lanes.context_lens[:n],
            drawn,
            self._sample_workspace,
        )
        if stages.size == 1:
            self._advance(n)

    def _advance(self, n: int) -> None:
        lanes = self.lanes
        advance(
            self._ops.gpu,
            self.drawn[:n],
            lanes.tokens[:n],
            lanes.positions[:n],
            lanes.context_lens[:n],
            lanes.slots[:n],
            lanes.block_tables[:n],
            lanes.counts[:n],
            lanes.ring,
            lanes.step,
            lanes.block_size,
        )

    def _by_operations(self, n: int, logits: Tensor) -> None:
        decoder, plan, stream = self._decoder, self._plan(n), self.stream[:n]
        x = decoder.embedded(plan) if decoder.stages.is_first else stream
        normed = decoder.through_layers(plan, x, self._cache)
        if decoder.stages.is_last:
            own = decoder.logits(plan, normed)
            logits.copy_(decoder.ranks.all_gather(own, logits.shape[1]))
        elif decoder.stages.is_first:
            stream.copy_(x)

    def _is_fused(self, n: int) -> bool:
        config, gpu, is_last = self._decoder.config, self._ops.gpu, self._decoder.stages.is_last
        return (
            near_llama(config)
            and (self._decoder.ranks.size == 1 or self._peer_buffers is not None)
            and not rounds_inputs(self._decoder.weights)
            and (not is_last or linear_takes(gpu, n, for_kernels(self._decoder.weights.lm_head)))
            and all(self._takes(n, layer) for layer in self._decoder.weights.layers)
        )

    def _takes(self, n: int, layer: LayerWeights) -> bool:
        """Whether the kernels take the layer's matrices with n vectors."""
        gpu, size = self._ops.gpu, self._decoder.config.head_dim
        return (
            all(linear_takes(gpu, n, part, span=size) for part in parts_of(layer.qkv))
            and all(linear_takes(gpu, n, part, span=len(part)) for part in parts_of(layer.gate_up))
            and all(
                linear_takes(gpu, n, for_kernels(weight), splittable=True)
                for weight in (layer.o, layer.down)
            )
        )

    def _fused(self, n: int, logits: Tensor) -> None:
        weights, stages, x = self._decoder.weights, self._decoder.stages, self.stream[:n]
        if stages.is_first:
            self._embed(n, x)
        for i, (layer, kv) in enumerate(zip(weights.layers, self._cache.layers, strict=True)):
            self._layer(n, x, i, layer, kv)
        if stages.is_last:
            self._head(x, self._norm(weights.final_norm), logits)
            self._decoder.cap_(logits)

    def _embed(self, n: int, x: Tensor) -> None:
        gpu, decoder = self._ops.gpu, self._decoder
        part = x if self._peer_buffers is None else self._part[:n]
        embed(
            gpu,
            self.lanes.tokens[:n],
            for_kernels(decoder.weights.embed),
            part,
            scale=decoder.embedding_scale,
            first_id=self._ops.first_id,
        )
        if self._peer_buffers is not None:
            all_reduce(gpu, x, self._peer_buffers.embedding, part, adds=False)

    def _head(self, x: Tensor, norm: Norm, logits: Tensor) -> None:
        gpu, workspace = self._ops.gpu, self._ops.linear_workspace
        weight = for_kernels(self._decoder.weights.lm_head)
        if self._peer_buffers is None:
            linear(gpu, x, weight, logits, workspace, norm=norm)
            return
        linear_send(gpu, x, weight, self._peer_buffers.logits, workspace, norm=norm)
        all_gather(gpu, logits, self._peer_buffers.logits, self._peer_buffers.vocab_per_rank)

    def _layer(self, n: int, x: Tensor, i: int, layer: LayerWeights, kv: LayerKV) -> None:
        lanes, ops, gpu, config = self.lanes, self._ops, self._ops.gpu, self._decoder.config
        attended, inner = self._attended[:n], self._inner[:n]
        cache, codes = stored(kv)
        queries = self._rotated(n, x, i, layer, kv)
        decode_attention(
            gpu,
            queries,
            cache,
            lanes.block_tables[:n],
            lanes.context_lens[:n],
            ops.scale,
            attended,
            ops.attention_workspace,
            window=ops.window(i),
            softcap=ops.softcap,
            settled=True,
            codes=codes,
        )
        boxes = self._peer_buffers
        of_attention, of_ffn = (None, None) if boxes is None else (boxes.attention, boxes.mlp)
        self._add(
            x,
            attended.view(n, -1),
            for_kernels(layer.o),
            layer.o_bias,
            layer.attn_out_norm,
            of_attention,
        )
        norm = self._norm(layer.mlp_norm)
        if isinstance(layer.gate_up, MergedWeight):
            both = inner.new_empty(n, 2 * inner.shape[1])
            self._product(x, layer.gate_up, layer.gate_up_bias, both, norm)
            activation(gpu, both, inner, config.activation, gated=True)
        else:
            linear_gated(
                gpu,
                x,
                for_kernels(layer.gate_up),
                inner,
                ops.linear_workspace,
                norm,
                config.activation,
                bias=layer.gate_up_bias,
            )
        self._add(x, inner, for_kernels(layer.down), layer.down_bias, layer.mlp_out_norm, of_ffn)

    def _norm(self, weight: Tensor | None) -> Norm:
        assert weight is not None  # see `near_llama`
        return Norm(weight, self._norm_eps, self._ops.norm_offset)

    def _rotated(self, n: int, x: Tensor, i: int, layer: LayerWeights, kv: LayerKV) -> Tensor:
        """The queries, ready for attention; keys and values are in the cache."""
        lanes, ops, gpu, heads = self.lanes, self._ops, self._ops.gpu, self._heads[:n]
        config, norm, cos_sin = self._decoder.config, self._norm(layer.attn_norm), ops.cos_sin(i)
        positions, slots = lanes.positions[:n], lanes.slots[:n]
        cache, codes = stored(kv)
        # The product's own rotation does not see a whole head, whose largest number codes need.
        if layer.head_norms is None and cos_sin is not None and codes is None:
            rotation = Rotation(cos_sin, positions, slots, cache, config.num_heads)
            parts, first = parts_of(layer.qkv), 0
            for part, bias in zip(parts, biases_of(parts, layer.qkv_bias), strict=True):
                linear_rotate(
                    gpu,
                    x,
                    part,
                    self._queries[:n],
                    ops.linear_workspace,
                    norm,
                    rotation,
                    bias=bias,
                    first_head=first,
                )
                first += len(part) // config.head_dim
            return self._queries[:n]
        self._product(x, layer.qkv, layer.qkv_bias, heads.view(n, -1), norm)
        rotary(
            gpu,
            heads,
            cos_sin,
            positions,
            slots,
            cache,
            config.num_heads,
            config.num_kv_heads,
            norm=ops.head_norm(layer.head_norms),
            codes=codes,
        )
        return heads[:, : config.num_heads]

    def _product(
        self, x: Tensor, weight: Weight, bias: Tensor | None, out: Tensor, norm: Norm
    ) -> None:
        """out [n, rows] = normed x · weightᵀ + bias, by a kernel for each form in the weight."""
        parts = parts_of(weight)
        rows = [len(part) for part in parts]
        # What the kernel writes lies together, as the parts of one vector do, at whole 16 bytes:
        # heads are such, and what `down` reads.
        apart = len(x) > 1 and len(parts) > 1
        outs = [out.new_empty(len(x), r) for r in rows] if apart else torch.split(out, rows, 1)
        gpu, workspace = self._ops.gpu, self._ops.linear_workspace
        for part, own, added in zip(parts, outs, biases_of(parts, bias), strict=True):
            linear(gpu, x, part, own, workspace, bias=added, norm=norm)
        if apart:
            torch.cat(outs, 1, out=out)

    def _add(
        self,
        x: Tensor,
        branch: Tensor,
        weight: Matrix,
        bias: Tensor | None,
        norm: Tensor | None,
        inbox: PeerBuffer | None,
    ) -> None:
        """Add the product of a branch's last matrix to the stream x, normed where it is to be.

        With an inbox, the sum of all ranks' products.
        """
        gpu, workspace = self._ops.gpu, self._ops.linear_workspace
        to = x if norm is None else self._sums[: len(x)]  # these are zero
        if inbox is None:
            linear_residual(gpu, branch, weight, to, workspace, bias=bias)
        else:
            linear_send(gpu, branch, weight, inbox, workspace, bias=bias)
            all_reduce(gpu, to, inbox)
        if norm is not None:
            offset = self._ops.norm_offset
            add_normed(gpu, x, to, norm, self._norm_eps, offset=offset, sums=True)

    def _plan(self, n: int) -> CudaPlan:
        lanes = self.lanes
        return CudaPlan(
            lanes.tokens[:n],
            lanes.positions[:n],
            lanes.slots[:n],
            lanes.block_tables[:n],
            lanes.context_lens[:n],
            num_decode=n,
        )
