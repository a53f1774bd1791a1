"""A decode step of Llama-like models in five fused kernels a layer."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from swiftchat.cuda.ops.attention.decode_rotary import DecodeRotary
from swiftchat.cuda.ops.comm import all_gather, all_reduce
from swiftchat.cuda.ops.layers.act_and_mul import act_and_mul
from swiftchat.cuda.ops.layers.embedding import embed
from swiftchat.cuda.ops.layers.norm import add_norm
from swiftchat.cuda.ops.linear.layout import MAX_GEMV_ROWS, linear_fits
from swiftchat.cuda.ops.linear.linear import (
    Norm,
    RopeCache,
    linear,
    linear_act_and_mul,
    linear_residual,
    linear_rope_cache,
    linear_send,
)
from swiftchat.cuda.peer_memory import PeerBuffer
from swiftchat.engine.comm.gpu_communicator import GpuCommunicator, PeerBuffers
from swiftchat.engine.gpu.attention import kernel_kv
from swiftchat.engine.gpu.fused.branches import (
    BranchSums,
    Tuned,
    add_experts,
    add_mlp_and_experts,
    attend_to_latents,
    mix,
    per_layer_inner,
    write_linear,
)
from swiftchat.engine.gpu.fused.coverage import (
    fused_kernels_cover,
    fused_layer_fits,
    fused_weights_fit,
    has_plain_heads,
)
from swiftchat.engine.gpu.fused.deltas import FusedDeltas
from swiftchat.engine.gpu.inputs.device_batch import DeviceBatch
from swiftchat.engine.gpu.ops import CudaOps
from swiftchat.engine.linear.adapted import Site
from swiftchat.engine.linear.merged import split_bias
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.hidden_states import LAST_NORM, HiddenStates
from swiftchat.engine.model.kv_cache import KVCache, LayerKV
from swiftchat.engine.model.weights import LayerWeights


class FusedDecoder:
    """Computes decode rows from their embeddings to their logits with fused kernels.

    A layer takes five kernels: normed q/k/v projection with rotation, attention, output projection
    added to the residual stream, normed gate and up projection with activation, down projection
    added to the stream. Norms of heads and of branch outputs take one more each. A mixer with a
    state takes the place of attention, experts that of the MLP. With several ranks, the output
    projections send their partial sums straight to the other ranks' peer buffers.
    """

    def __init__(
        self,
        decoder: Decoder,
        ops: CudaOps,
        cache: KVCache,
        max_rows: int,
        *,
        shares_blocks: bool = False,
    ) -> None:
        self._shares_blocks = shares_blocks
        self._deltas: FusedDeltas | None = None  # of the present launch
        self._decoder, self._ops, self._cache = decoder, ops, cache
        ranks, config = decoder.ranks, decoder.config
        self._peer_buffers: PeerBuffers | None = (
            ranks.peer_buffers if isinstance(ranks, GpuCommunicator) else None
        )
        self._layers = ops.attention.layers
        self._own: Sequence[Tensor] = ()  # of the tokens, for each layer
        max_rows, device = min(max_rows, MAX_GEMV_ROWS), ops.gpu.device

        def empty(size: int, dtype: torch.dtype = decoder.weights.dtype) -> Tensor:
            return torch.empty(max_rows, size, dtype=dtype, device=device)

        def zeros() -> Tensor:
            return torch.zeros(max_rows, config.hidden_size, device=device)

        self._embedding = empty(config.hidden_size, dtype=torch.float32)
        # For a layer that rotates in a kernel of its own, with keys and values beside the queries.
        heads = config.num_heads
        query_heads = heads * (2 if config.attention_gate else 1)  # and those of gates
        widths = [e.head_dim * (query_heads + 2 * e.num_kv_heads) for e in self._layers]
        self._qkv = empty(max(widths))
        self._queries = empty(max(each.head_dim * heads for each in self._layers))
        self._attention_output = torch.empty_like(self._queries)
        self._mlp_inner = empty(max(each.intermediate_size for each in self._layers))
        self._branch_output = zeros()
        self._sums = BranchSums(self._branch_output, zeros(), zeros())

    def supports(self, n: int) -> bool:
        """Return whether n rows of this model can be computed."""
        decoder, gpu, is_last = self._decoder, self._ops.gpu, self._decoder.stages.is_last
        weights, head = decoder.weights, decoder.weights.lm_head.kernel_matrices
        return (
            fused_kernels_cover(decoder.config)
            and fused_weights_fit(weights)
            and self._ops.computes_experts(weights.layers)
            and (decoder.ranks.size == 1 or self._peer_buffers is not None)
            and (decoder.ranks.size == 1 or not self._is_for_one_gpu)
            and (not is_last or (len(head) == 1 and linear_fits(gpu, n, head[0])))
            and all(
                fused_layer_fits(self._ops, n, i, each) for i, each in enumerate(weights.layers)
            )
        )

    def adapts(self, n: int) -> bool:
        """Return whether n rows of this model can be computed with adapters."""
        return not self._is_for_one_gpu and self.supports(n)

    @property
    def _is_for_one_gpu(self) -> bool:
        """Whether ranks compute the model with the decoder's operations."""
        return self._is_special or self._decoder.config.mixer is not None

    @property
    def _is_special(self) -> bool:
        """Whether the model has experts or latent attention: for one GPU, and without adapters."""
        config = self._decoder.config
        return config.num_experts > 0 or config.latent is not None

    def launch(
        self,
        batch: DeviceBatch,
        x: Tensor,
        logits: Tensor,
        deltas: FusedDeltas | None = None,
        hidden: HiddenStates | None = None,
    ) -> None:
        """Launch the kernels of this stage for a batch of decode rows.

        `x` fp32 [n, hidden_size] is the residual stream: read unless this is the first stage, and
        modified in place. The last stage writes `logits` fp32 [n, vocab_size]. `deltas` are the
        adapters of the rows; `hidden` receives hidden states, on one rank and stage.
        """
        self._batch, self._deltas = batch, deltas
        if deltas is not None:
            deltas.begin(len(x))
        weights, stages = self._decoder.weights, self._decoder.stages
        if stages.is_first:
            self._embed(x)
        if weights.per_layer is not None:
            self._own = self._ops.per_layer.embeddings(batch.ids, x, weights.per_layer)
        for i, (layer, kv) in enumerate(zip(weights.layers, self._cache.layers, strict=True)):
            if hidden is not None:
                self._decoder.keep(hidden, i, x)
            self._layer(x, i, layer, kv)
        if hidden is not None:
            self._keep_last(hidden, x)
        if stages.is_last:
            self._lm_head(x, self._norm(weights.final_norm), logits)
            self._decoder.softcap_(logits)

    def _keep_last(self, hidden: HiddenStates, x: Tensor) -> None:
        """Store what the last layer leaves, and the norm of it that the LM head computes itself."""
        decoder, norm = self._decoder, self._decoder.weights.final_norm
        decoder.keep(hidden, len(decoder.weights.layers), x)
        if LAST_NORM in hidden.layers:
            assert norm is not None  # see `fused_kernels_cover`
            decoder.keep(hidden, LAST_NORM, self._ops.norm_(x, None, norm, None))

    def _embed(self, x: Tensor) -> None:
        gpu, decoder, n = self._ops.gpu, self._decoder, len(x)
        (table,) = decoder.weights.embed.kernel_matrices
        embed(
            gpu,
            self._batch.ids,
            table,
            x if self._peer_buffers is None else self._embedding[:n],
            scale=decoder.embedding_scale,
            first_id=self._ops.first_id,
        )
        if self._peer_buffers is not None:
            all_reduce(gpu, x, self._peer_buffers.embedding, self._embedding[:n], accumulate=False)

    def _lm_head(self, x: Tensor, norm: Norm, logits: Tensor) -> None:
        gpu, workspace, buffers = self._ops.gpu, self._ops.linear_workspace, self._peer_buffers
        (weight,) = self._decoder.weights.lm_head.kernel_matrices
        if buffers is None:
            linear(gpu, x, weight, logits, workspace, norm=norm)
            return
        linear_send(gpu, x, weight, buffers.logits, workspace, norm=norm)
        all_gather(gpu, logits, buffers.logits, buffers.vocab_per_rank)

    def _layer(self, x: Tensor, i: int, layer: LayerWeights, kv: LayerKV) -> None:
        buffers = self._peer_buffers
        if layer.mixer is not None:
            norm, tuned = self._norm(layer.attn_norm), Tuned(layer.mixer.project_out_bias)
            mixed = mix(self._ops, self._batch, i, x, layer.mixer, norm)
            out_norm = layer.attn_out_norm
            self._add_branch(x, mixed, layer.mixer.project_out, tuned, out_norm, None)
        else:
            attention = self._attend(x, i, layer, kv)
            self._add_branch(
                x,
                attention,
                layer.o,
                self._tuned(attention, ("o", i), layer.o, layer.o_bias),
                layer.attn_out_norm,
                None if buffers is None else buffers.attention,
            )
        if layer.experts is not None and layer.expert_norms is None:
            activation = self._decoder.config.activation
            add_experts(self._ops, i, x, layer, self._norm(layer.mlp_norm), activation)
            return
        own = None if layer.per_layer is None else self._own[i]
        rounded = None if own is None else own.new_empty(x.shape)
        scale = layer.scale if own is None else None  # else the last branch's
        inner = self._gate_up(x, i, layer)
        if layer.expert_norms is not None:
            norm = self._norm(layer.expert_norms.router)
            add_mlp_and_experts(
                *(self._ops, i, x, layer, inner, self._sums, norm), scale=scale, rounded=rounded
            )
        else:
            self._add_branch(
                x,
                inner,
                layer.down,
                self._tuned(inner, ("down", i), layer.down, layer.down_bias),
                layer.mlp_out_norm,
                None if buffers is None else buffers.mlp,
                scale=scale,
                rounded=rounded,
            )
        if layer.per_layer is not None and own is not None and rounded is not None:
            inner = per_layer_inner(self._ops, rounded, own, layer.per_layer)
            out, norm_weight = layer.per_layer.out, layer.per_layer.out_norm
            self._add_branch(x, inner, out, Tuned(None), norm_weight, None, scale=layer.scale)

    def _attend(self, x: Tensor, i: int, layer: LayerWeights, kv: LayerKV) -> Tensor:
        """Return the attention output before its projection, [n, num_heads * head_dim]."""
        n, ops, batch, config = len(x), self._ops, self._batch, self._layers[i]
        if layer.latent is not None:
            norm = self._norm(layer.attn_norm)
            return attend_to_latents(ops, batch, i, x, layer, norm, kv)
        output = _first(self._attention_output, n, config.num_heads, config.head_dim)
        queries, gates, rotary = self._queries_of(x, i, layer, kv)
        assert batch.decode is not None
        ops.attention.decode(
            *(i, queries, kv, batch.decode, layer.sinks),
            output,
            # Rows that share blocks attend to keys and values of all of them.
            new_tokens=n if self._shares_blocks else 1,
            even_lengths=self._shares_blocks,
            rotary=rotary,
        )
        return output.view(n, -1) if gates is None else ops.gate(output.view(n, -1), gates)

    def _queries_of(
        self, x: Tensor, i: int, layer: LayerWeights, kv: LayerKV
    ) -> tuple[Tensor, Tensor | None, DecodeRotary | None]:
        """Return queries [n, num_heads, head_dim], gates of the attention's output, and a rotation.

        Unless the rotation is left to the attention, stores keys and values in the cache.
        """
        n, ops, gpu, config = len(x), self._ops, self._ops.gpu, self._layers[i]
        norm, cos_sin = self._norm(layer.attn_norm), ops.attention.cos_sin(i)
        tuned = self._tuned(x, ("qkv", i), layer.qkv, layer.qkv_bias, norm)
        positions, slot_mapping = self._batch.positions, self._batch.slot_mapping
        cache, kv_scales = kernel_kv(kv)
        # A quantized cache needs the maximum of the whole head.
        if has_plain_heads(ops, i, layer) and cos_sin is not None and kv_scales is None:
            queries = _first(self._queries, n, config.num_heads, config.head_dim)
            rope = RopeCache(cos_sin, positions, slot_mapping, cache, config.num_heads)
            parts, first = layer.qkv.kernel_matrices, 0
            for part, bias in zip(parts, split_bias(tuned.bias, parts), strict=True):
                linear_rope_cache(
                    gpu,
                    x,
                    part,
                    queries,
                    ops.linear_workspace,
                    norm=norm,
                    rope=rope,
                    bias=bias,
                    first_head=first,
                    changes=tuned.changes,
                )
                first += len(part) // config.head_dim
            return queries, None, None
        qkv, width = _first(self._qkv, n, layer.qkv.shape[0]), config.num_heads * config.head_dim
        write_linear(ops, x, layer.qkv, tuned, qkv, norm)
        gates = qkv[:, width : 2 * width] if config.attention_gate else None
        num_gate_heads = 0 if gates is None else config.num_heads
        what = kv, layer.head_norms, positions, slot_mapping, num_gate_heads
        # Other rows may need the new keys and values of a row, if they share its blocks.
        rotary = None if self._shares_blocks else ops.attention.decode_rotary(i, *what)
        if rotary is None:
            return ops.attention.rotate(i, qkv, *what), gates, None
        return qkv.view(n, -1, config.head_dim)[:, : config.num_heads], gates, rotary

    def _gate_up(self, x: Tensor, i: int, layer: LayerWeights) -> Tensor:
        """Return activation(gate) * up, [n, intermediate_size]."""
        ops, gpu, activation = self._ops, self._ops.gpu, self._decoder.config.activation
        inner = _first(self._mlp_inner, len(x), layer.gate_up.shape[0] // 2)
        norm = self._norm(layer.mlp_norm)
        tuned = self._tuned(x, ("gate_up", i), layer.gate_up, layer.gate_up_bias, norm)
        parts = layer.gate_up.kernel_matrices
        if len(parts) > 1:
            gate_up = inner.new_empty(len(x), 2 * inner.shape[1])
            write_linear(ops, x, layer.gate_up, tuned, gate_up, norm)
            act_and_mul(gpu, gate_up, inner, activation, gated=True)
        else:
            linear_act_and_mul(
                gpu,
                x,
                parts[0],
                inner,
                self._ops.linear_workspace,
                norm=norm,
                activation=activation,
                bias=tuned.bias,
                changes=tuned.changes,
            )
        return inner

    def _tuned(
        self,
        x: Tensor,
        site: Site,
        weight: LinearWeight,
        bias: Tensor | None,
        norm: Norm | None = None,
    ) -> Tuned:
        """Return what a matmul of x adds to its results, with the adapters of the rows."""
        deltas = self._deltas
        if deltas is None:
            return Tuned(bias)
        changes = deltas.changes(site, len(x))
        if changes is not None:
            return Tuned(bias, changes)
        return Tuned(deltas.bias(x, site, weight.shape[0], bias, norm))

    def _norm(self, weight: Tensor | None) -> Norm:
        assert weight is not None  # see `fused_kernels_cover`
        return Norm(weight, self._decoder.config.norm_eps, self._ops.norm_offset)

    def _add_branch(
        self,
        x: Tensor,
        inner: Tensor,
        weight: LinearWeight,
        tuned: Tuned,
        norm: Tensor | None,
        peer_buffer: PeerBuffer | None,
        *,
        scale: Tensor | None = None,
        rounded: Tensor | None = None,
    ) -> None:
        """Add the branch output inner · weightᵀ and more, normed if `norm` is given, to x in place.

        With a peer buffer, all-reduce the output over the ranks. With a norm x is then multiplied
        by `scale`, and written to `rounded`.
        """
        gpu, workspace = self._ops.gpu, self._ops.linear_workspace
        (matrix,) = weight.kernel_matrices
        # `_branch_output` is zero here: `add_norm` clears it after each use.
        target = x if norm is None else self._branch_output[: len(x)]
        if peer_buffer is None:
            linear_residual(
                gpu, inner, matrix, target, workspace, bias=tuned.bias, changes=tuned.changes
            )
        else:
            linear_send(
                gpu, inner, matrix, peer_buffer, workspace, bias=tuned.bias, changes=tuned.changes
            )
            all_reduce(gpu, target, peer_buffer)
        if norm is not None:
            eps, offset = self._decoder.config.norm_eps, self._ops.norm_offset
            add_norm(
                *(gpu, x, target, norm, eps),
                weight_offset=offset,
                zero_delta=True,
                scale=scale,
                copy=rounded,
            )


def _first(buffer: Tensor, *shape: int) -> Tensor:
    """Return the beginning of a buffer in this shape."""
    return buffer.view(-1)[: math.prod(shape)].view(shape)
