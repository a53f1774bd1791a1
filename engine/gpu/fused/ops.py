"""The operations of a decode step with fusion: most of them return what a later one computes."""

import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from swiftchat.cuda.ops.attention.decode_rotary import DecodeRotary
from swiftchat.cuda.ops.linear.layout import MAX_GEMV_ROWS
from swiftchat.cuda.ops.linear.linear import MAX_ROPE_HEAD_DIM, Norm, RopeCache
from swiftchat.engine.comm.communicator import Communicator
from swiftchat.engine.gpu.attention import kernel_kv
from swiftchat.engine.gpu.fused.deltas import FusedDeltas
from swiftchat.engine.gpu.fused.experts import ExpertSum
from swiftchat.engine.gpu.fused.matmul import Matmul, MatmulKernels
from swiftchat.engine.gpu.fused.norm import AddNorm, Embedding, Normed, Scratch, Stream
from swiftchat.engine.gpu.fused.pending import (
    Cast,
    Gated,
    Pending,
    Reading,
    Sum,
    add,
    adds,
    computed,
    readings,
)
from swiftchat.engine.gpu.inputs.device_batch import DeviceBatch
from swiftchat.engine.gpu.ops import CudaOps
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.model.mixer_weights import MixerWeights
from swiftchat.engine.model.moe import Experts
from swiftchat.engine.model.ops import AttentionInputs
from swiftchat.engine.model.per_layer import PerLayerBranch, PerLayerTable


class FusedOps(CudaOps):
    """The operations of `ops` for the rows of a decode batch, computed as late as possible.

    A kernel that follows computes a pending value with its own: a norm in the matmul that reads
    it, a matmul in the activation, in the rotation that stores keys and values, and in the stream.
    So `Decoder` computes a plain layer with five kernels. What no kernel computes together is
    computed as by `ops`. `residual` fp32 [max_rows, hidden_size] is the memory of the stream.

    Rows may be tokens of one sequence only with `shares_blocks`. With `reads_earlier` a step may
    read what another one of the same graph has written. `deltas` are the adapters of the rows.
    """

    def __init__(
        self,
        ops: CudaOps,
        residual: Tensor,
        *,
        shares_blocks: bool = False,
        reads_earlier: bool = False,
        deltas: FusedDeltas | None = None,
    ) -> None:
        # The same kernels, tables and workspaces.
        self.gpu, self._config, self._latent = ops.gpu, ops._config, ops._latent
        self.attention, self.experts, self.mixers = ops.attention, ops.experts, ops.mixers
        self.per_layer, self.linear_workspace = ops.per_layer, ops.linear_workspace
        self.heads_first, self.norm_offset = ops.heads_first, ops.norm_offset
        self.first_id = ops.first_id
        self._residual, self._shares_blocks, self._deltas = residual, shares_blocks, deltas
        self._reads_earlier = reads_earlier
        self._kernels = MatmulKernels(ops.gpu, ops.linear_workspace, deltas)
        max_rows = min(len(residual), MAX_GEMV_ROWS)
        self._scratch = Scratch(ops.gpu, max_rows, residual.shape[1])
        self._readings: list[weakref.ref[Reading]] = []

    def begin(self) -> None:
        """Begin a step, whatever has become of the one before."""
        self._readings = []
        self._scratch.reset()
        if self._deltas is not None:
            self._deltas.reset()

    def end(self) -> None:
        """End a step, whose results are written."""
        if self._deltas is not None:
            self._deltas.reset()

    def stream(self, n: int) -> Stream:
        """Return the stream of n rows that an earlier pipeline stage has computed."""
        return Stream(self._residual[:n])

    def write_stream(self, x: Tensor) -> None:
        """Write the stream to `residual`, for the next pipeline stage."""
        rows = computed(x)
        residual = self._residual[: len(rows)]
        if rows.data_ptr() != residual.data_ptr():
            residual.copy_(rows)

    def embed(self, plan: DeviceBatch, table: LinearWeight) -> Tensor:
        (matrix,) = table.kernel_matrices
        embedding = Embedding(self.gpu, plan.ids, matrix, self.first_id)
        n, width = len(plan.ids), table.shape[1]
        if width == self._residual.shape[1]:
            return Stream(self._residual[:n], embedding)
        return Stream(torch.empty(n, width, device=self.gpu.device), embedding)

    def norm_(self, x: Tensor, delta: Tensor | None, weight: Tensor, bias: Tensor | None) -> Tensor:
        if delta is not None and (adds(delta) or computed(delta).dtype != weight.dtype):
            self.add_(x, delta)
            delta = None
        if delta is not None or self._config.norm.kind != "rms" or bias is not None:
            self._settle(x)
            delta = None if delta is None else computed(delta)
            return super().norm_(computed(x), delta, weight, bias)
        return self._normed(x, weight)

    def _normed(self, x: Tensor, weight: Tensor) -> Normed:
        if isinstance(x, Stream):
            computed(x)  # what is pending of it precedes the norm
        norm, compute = Norm(weight, self._config.norm.eps, self.norm_offset), super().norm_
        normed = Normed(
            self.gpu,
            x,
            norm,
            self._scratch,
            lambda rows: compute(rows.float(), None, weight, None),
        )
        self._readings.append(weakref.ref(normed))
        return normed

    def add_(self, x: Tensor, delta: Tensor) -> None:
        absorbed = readings(delta)
        self._settle(x, absorbed)
        if isinstance(x, Stream) and isinstance(delta, Normed) and delta.adds:
            rows = computed(x)
            x.ending = delta.sum_source(len(rows))
        else:
            add(delta, computed(x))
        for reading in absorbed:
            reading.is_current = False

    def _settle(self, x: Tensor, absorbed: Sequence[Reading] = ()) -> None:
        """Compute what reads the stream x and is still wanted, before x changes.

        But for what the change absorbs.
        """
        kept = []
        for reference in self._readings:
            reading = reference()
            if reading is None or not reading.is_pending or not reading.is_current:
                continue
            if reading.source is not x or any(reading is own for own in absorbed):
                kept.append(reference)
            else:
                computed(reading)
        self._readings = kept

    def add_norm_(self, x: Tensor, delta: Tensor, weight: Tensor) -> None:
        if adds(delta):
            self.add_(x, self._normed(delta, weight))
        else:
            self._settle(x)
            super().add_norm_(computed(x), computed(delta), weight)

    def replace_(self, x: Tensor, normed: Tensor, scale: float) -> None:
        rows = computed(normed)
        self._settle(x)
        super().replace_(computed(x), rows, scale)

    def scale_(self, x: Tensor, scale: float | Tensor) -> None:
        self._settle(x)
        if not (isinstance(x, Stream) and x.scale_(scale)):
            super().scale_(computed(x), scale)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        # A sum with the stream is that of now.
        if (adds(x) or adds(y)) and not (isinstance(x, Stream) or isinstance(y, Stream)):
            return Sum([x, y])
        return super().add(computed(x), computed(y))

    def cast(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        if not isinstance(x, Pending):
            return super().cast(x, dtype)
        if isinstance(x, Stream):
            computed(x)
        cast = Cast(x, dtype)
        self._readings.append(weakref.ref(cast))
        return cast

    def copy(self, x: Tensor, scale: float) -> Tensor:
        # A norm that is also copied stays pending, so that hidden states change no bit of logits.
        if isinstance(x, Normed) and x.is_pending:
            return super().copy(x.compute(), scale)
        return super().copy(computed(x), scale)

    def linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None) -> Tensor:
        return Matmul(self._kernels, x, weight, bias)

    def logits(self, x: Tensor, lm_head: LinearWeight, bias: Tensor | None) -> Tensor:
        return Matmul(self._kernels, x, lm_head, bias, fp32=True)

    def act_and_mul(self, gate_up: Tensor) -> Tensor:
        if isinstance(gate_up, Matmul) and self.gate_activation is not None:
            inner = gate_up.act_and_mul(self.gate_activation)
            if inner is not None:
                return inner
        return super().act_and_mul(computed(gate_up))

    def moe(
        self, layer: int, x: Tensor, experts: Experts, router_input: Tensor | None = None
    ) -> Tensor:
        compute = super().moe

        def value() -> Tensor:
            seen = None if router_input is None else computed(router_input)
            return compute(layer, computed(x), experts, seen)

        return ExpertSum(
            self._kernels,
            self.experts,
            layer,
            x,
            experts,
            router_input,
            activation=self.gate_activation,
            compute=value,
        )

    def mix(
        self, plan: DeviceBatch, layer: int, x: Tensor, mixer: MixerWeights, ranks: Communicator
    ) -> Tensor:
        projected = computed(self.linear(x, mixer.project_in, mixer.project_in_bias))
        out = self.mixers.mix(plan, layer, projected, mixer, ranks)
        return self.linear(out, mixer.project_out, mixer.project_out_bias)

    def split_gate(self, qkv: Tensor, width: int) -> tuple[Tensor, Tensor]:
        gated = Gated(computed(qkv), width)
        return gated, gated.gates

    def attend(self, plan: DeviceBatch, qkv: Tensor, inputs: AttentionInputs) -> Tensor:
        if inputs.latent is not None:
            return super().attend(plan, computed(qkv), inputs)
        assert plan.decode is not None
        queries, rotary = self._queries(plan, qkv, inputs)
        # Rows that share blocks attend to keys and values of all of them.
        new_tokens = len(queries) if self._shares_blocks else 1
        out = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
        self.attention.decode(
            queries,
            inputs,
            plan.decode,
            out,
            new_tokens=0 if self._reads_earlier else new_tokens,
            even_lengths=self._shares_blocks,
            rotary=rotary,
        )
        return out.view(len(out), -1)

    def _queries(
        self, plan: DeviceBatch, qkv: Tensor, inputs: AttentionInputs
    ) -> tuple[Tensor, DecodeRotary | None]:
        """Return queries [n, num_heads, head_dim], and their rotation if the attention does it.

        Else keys and values are stored in the cache.
        """
        # What is written to the cache together with other work reads positions ahead.
        waits = self._reads_earlier
        rope = self._rope(plan, inputs) if inputs.norms is None and not waits else None
        if rope is not None and isinstance(qkv, Matmul) and qkv.rotates(rope):
            return qkv.rotate(rope), None
        config, num_gate_heads = self.attention.layers[inputs.layer], 0
        if isinstance(qkv, Gated) and qkv.is_pending and self.attention.norms_heads(inputs):
            heads, num_gate_heads = qkv.heads, config.num_heads
        else:
            heads = computed(qkv)
        # Other rows may need the new keys and values of a row, if they share its blocks.
        is_apart, rotary = not (self._shares_blocks or waits), None
        if is_apart:
            rotary = self.attention.decode_rotary(plan, inputs, num_gate_heads)
        if rotary is None:
            return self.attention.rotate(plan, heads, inputs, num_gate_heads), None
        return heads.view(len(heads), -1, config.head_dim)[:, : config.num_heads], rotary

    def _rope(self, plan: DeviceBatch, inputs: AttentionInputs) -> RopeCache | None:
        """Return what a matmul needs to rotate the heads of a layer; None: it cannot.

        It computes a part of a head at a time, so it neither scales queries nor quantizes.
        """
        layer = inputs.layer
        config, cos_sin = self.attention.layers[layer], self.attention.cos_sin(layer)
        cache, kv_scales = kernel_kv(inputs.kv)
        if (
            cos_sin is None
            or kv_scales is not None
            or config.head_dim > MAX_ROPE_HEAD_DIM
            or config.kv_source is not None
            or config.values.are_keys
            or self.attention.query_factors(layer) is not None
        ):
            return None
        return RopeCache(cos_sin, plan.positions, plan.slot_mapping, cache, config.num_heads)

    def gate(self, x: Tensor, scores: Tensor, *, softplus: bool = False) -> Tensor:
        return super().gate(computed(x), computed(scores), softplus=softplus)

    def per_layer_embeddings(
        self, plan: DeviceBatch, x: Tensor, table: PerLayerTable
    ) -> Sequence[Tensor]:
        return super().per_layer_embeddings(plan, computed(x), table)

    def per_layer_branch(self, x: Tensor, own: Tensor, branch: PerLayerBranch) -> Tensor:
        if not (isinstance(x, Stream) and adds(self.linear(own, branch.out, None))):
            return super().per_layer_branch(computed(x), own, branch)
        if isinstance(x.ending, AddNorm):
            rounded = x.ending.copy = own.new_empty(len(own), self._residual.shape[1])
            computed(x)
        else:
            rounded = computed(x).to(own.dtype)
        gate = computed(self.linear(rounded, branch.gate, None))
        inner = self.per_layer.gated(gate, own)
        return self._normed(self.linear(inner, branch.out, None), branch.out_norm)
