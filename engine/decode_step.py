"""One token for every lane, from embedding to sampling: captured once, replayed for each step."""

import torch
from torch import Tensor

from swiftchat.cuda.ops.advance import advance
from swiftchat.cuda.ops.argmax import argmax, argmax_workspace
from swiftchat.cuda.ops.decode_attention import decode_attention
from swiftchat.cuda.ops.embed import embed
from swiftchat.cuda.ops.linear import (
    MAX_VECTORS,
    Norm,
    Rotation,
    linear,
    linear_fits,
    linear_gated,
    linear_residual,
    linear_rotate,
)
from swiftchat.cuda.ops.penalties import penalties
from swiftchat.cuda.ops.rotary import HeadNorm, rotary
from swiftchat.cuda.ops.sample import sample, sample_workspace
from swiftchat.engine.cuda_ops import CudaOps, CudaPlan
from swiftchat.engine.decoder import Decoder, LayerWeights
from swiftchat.engine.kv_cache import KVCache
from swiftchat.engine.lanes import Lanes

# Numbers of lanes that have a graph; the others use the next larger one.
SIZES = (1, 2, 4, 8, 16, 32, 64)


class DecodeStep:
    """The decode steps of one model, for all numbers of lanes.

    Few vectors go through five kernels a layer, six where heads are normed, each fused with its
    neighbours; more lanes than those take use the decoder's own operations. Either way the
    result is a CUDA graph.
    """

    def __init__(self, decoder: Decoder, ops: CudaOps, cache: KVCache, lanes: Lanes) -> None:
        config, weights = decoder.config, decoder.weights
        self._decoder, self._ops, self._cache, self.lanes = decoder, ops, cache, lanes
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        n, gpu = lanes.max_lanes, ops.gpu
        dtype, few = weights.embed.dtype, min(n, MAX_VECTORS)

        def empty(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=gpu.device)

        self._x = empty(few, config.hidden_size, dtype=torch.float32)
        heads = config.num_heads + (2 * config.num_kv_heads if config.qk_norm else 0)
        self._queries = empty(few, heads, config.head_dim)
        self._attended = empty(few, config.num_heads, config.head_dim)
        self._inner = empty(few, config.intermediate_size)
        self._logits = empty(n, config.vocab_size, dtype=torch.float32)
        self._values = empty(n, dtype=torch.float32)
        self._ids, self._sampled = (empty(n, dtype=torch.int32) for _ in range(2))
        self._argmax_workspace = argmax_workspace(gpu, n)
        self._sample_workspace = sample_workspace(gpu, n, config.vocab_size)

    def launch(self, num_lanes: int) -> None:
        """Start a step of the first lanes; the device is behind, and nothing is waited for."""
        self.prepare(num_lanes).replay()
        self.lanes.num_steps += 1

    def prepare(self, num_lanes: int) -> torch.cuda.CUDAGraph:
        """The graph for so many lanes, captured now if there is none yet."""
        size = next(size for size in SIZES if size >= num_lanes)
        if size not in self._graphs:
            self._graphs[size] = self._capture(min(size, self.lanes.max_lanes))
        return self._graphs[size]

    def _capture(self, n: int) -> torch.cuda.CUDAGraph:
        """Record the step of n lanes.

        Its kernels are compiled together, and it is run once before, which loads them. The lanes
        are put back afterwards; keys, values and tokens that were written, the next step writes
        again.
        """
        lanes = self.lanes
        state = [lanes.tokens, lanes.positions, lanes.context_lens, lanes.slots, lanes.step,
                 lanes.counts]  # fmt: skip
        saved = [tensor.clone() for tensor in state]
        with self._ops.gpu.collecting() as specs:
            self.run(n)
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
        lanes, gpu = self.lanes, self._ops.gpu
        logits = self._logits[:n]
        if self._is_fused(n):
            self._fused(n, logits)
        else:
            logits.copy_(self._decoder.run(self._plan(n), self._cache))
        penalties(gpu, logits, lanes.counts[:n], lanes.repeat_penalty[:n],
                  lanes.presence_penalty[:n], lanes.frequency_penalty[:n])  # fmt: skip
        values, ids, sampled = self._values[:n], self._ids[:n], self._sampled[:n]
        argmax(gpu, logits, values, ids, self._argmax_workspace)
        sample(gpu, logits, values, ids, lanes.temperature[:n], lanes.top_k[:n], lanes.top_p[:n],
               lanes.min_p[:n], lanes.seeds[:n], lanes.context_lens[:n], sampled,
               self._sample_workspace)  # fmt: skip
        advance(gpu, sampled, lanes.tokens[:n], lanes.positions[:n], lanes.context_lens[:n],
                lanes.slots[:n], lanes.block_tables[:n], lanes.counts[:n], lanes.ring, lanes.step,
                lanes.block_size)  # fmt: skip

    def _is_fused(self, n: int) -> bool:
        config, gpu = self._decoder.config, self._ops.gpu
        itemsize = self._decoder.weights.embed.itemsize
        attended = config.num_heads * config.head_dim
        return (
            config.intermediate_size % 4 == 0
            and linear_fits(gpu, n, config.hidden_size, itemsize)
            and linear_fits(gpu, n, attended, itemsize, splittable=True)
            and linear_fits(gpu, n, config.intermediate_size, itemsize, splittable=True)
        )

    def _fused(self, n: int, logits: Tensor) -> None:
        lanes, gpu, weights = self.lanes, self._ops.gpu, self._decoder.weights
        x = self._x[:n]
        embed(gpu, lanes.tokens[:n], weights.embed, x)
        for layer, kv in zip(weights.layers, self._cache.layers, strict=True):
            self._layer(n, x, layer, kv)
        assert weights.final_norm is not None  # see `kernels_cover`
        final = Norm(weights.final_norm, self._decoder.config.norm_eps)
        linear(gpu, x, weights.lm_head, logits, self._ops.linear_workspace, norm=final)

    def _layer(self, n: int, x: Tensor, layer: LayerWeights, kv: Tensor) -> None:
        lanes, ops, gpu, config = self.lanes, self._ops, self._ops.gpu, self._decoder.config
        workspace = ops.linear_workspace
        queries, attended, inner = self._queries[:n], self._attended[:n], self._inner[:n]
        assert layer.attn_norm is not None and layer.mlp_norm is not None
        norm = Norm(layer.attn_norm, config.norm_eps)
        if layer.q_norm is None or layer.k_norm is None:
            rotation = Rotation(
                ops.cos_sin, lanes.positions[:n], lanes.slots[:n], kv, config.num_heads
            )
            linear_rotate(
                gpu, x, layer.qkv, queries, workspace, norm, rotation, bias=layer.qkv_bias
            )
        else:
            linear(
                gpu, x, layer.qkv, queries.view(n, -1), workspace, bias=layer.qkv_bias, norm=norm
            )
            rotary(
                gpu, queries, ops.cos_sin, lanes.positions[:n], lanes.slots[:n], kv,
                config.num_heads, config.num_kv_heads,
                norm=HeadNorm(layer.q_norm, layer.k_norm, config.norm_eps),
            )  # fmt: skip
            queries = queries[:, : config.num_heads]
        decode_attention(
            gpu, queries, kv, lanes.block_tables[:n], lanes.context_lens[:n], ops.scale, attended,
            ops.attention_workspace, window=ops.window, settled=True,
        )  # fmt: skip
        linear_residual(gpu, attended.view(n, -1), layer.o, x, workspace, bias=layer.o_bias)
        norm = Norm(layer.mlp_norm, config.norm_eps)
        linear_gated(gpu, x, layer.gate_up, inner, workspace, norm, config.activation,
                     bias=layer.gate_up_bias)  # fmt: skip
        linear_residual(gpu, inner, layer.down, x, workspace, bias=layer.down_bias)

    def _plan(self, n: int) -> CudaPlan:
        lanes = self.lanes
        return CudaPlan(lanes.tokens[:n], lanes.positions[:n], lanes.slots[:n],
                        lanes.block_tables[:n], lanes.context_lens[:n], num_decode=n)  # fmt: skip
