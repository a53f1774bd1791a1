"""Record the operations of a decoder's forward pass for the native kernels."""

from collections.abc import Collection, Mapping, Sequence
from ctypes import Structure
from types import MappingProxyType

import torch
from torch import Tensor

from swiftchat.engine.comm.communicator import Communicator
from swiftchat.engine.cpu import native
from swiftchat.engine.cpu.activation_op import ACTIVATIONS, act_and_mul_op
from swiftchat.engine.cpu.attention_ops import AttentionOps, layer_cache
from swiftchat.engine.cpu.experts import moe_op
from swiftchat.engine.cpu.low_rank import NativeDeltas
from swiftchat.engine.cpu.mixers import Parameters
from swiftchat.engine.cpu.native import Matrix, Norm, NormKind, RowSet
from swiftchat.engine.cpu.native_weights import native_matrices
from swiftchat.engine.cpu.recorded_activations import Activations, CannotRecordError
from swiftchat.engine.cpu.recording import Recording
from swiftchat.engine.cpu.references import References
from swiftchat.engine.cpu.without_kernels import WithoutKernels
from swiftchat.engine.linear.adapted import AdaptedWeight, Site
from swiftchat.engine.linear.plain import PlainWeight
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.hidden_states import HiddenStates
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.model.mixer_weights import MixerWeights
from swiftchat.engine.model.moe import Experts
from swiftchat.engine.model.ops import AttentionInputs
from swiftchat.engine.model.per_layer import PerLayerBranch, PerLayerTable
from swiftchat.engine.model.state_cache import LayerStates
from swiftchat.engine.model.weights import DecoderWeights
from swiftchat.engine.schedule.batch import Batch
from swiftchat.weights.architectures.parts.model import ModelConfig

_EMPTY = Batch([], [], [], [], [], [])


class Recorder(WithoutKernels):
    """`Ops` that list a decoder's operations for the native kernels and compute nothing."""

    heads_first = True

    def __init__(self, config: ModelConfig, weights: DecoderWeights, ctx_size_tokens: int) -> None:
        self.ops: list[Structure] = []
        self.buffers: list[tuple[RowSet, int]] = []
        self._references = References(weights)
        self.deltas: dict[Site, NativeDeltas] = {}
        self._config, self._weights = config, weights
        self._is_exact = weights.dtype == torch.float32
        self._block_size = 0
        self._states: Mapping[int, LayerStates] = MappingProxyType({})
        self._attention = AttentionOps(config, self._references, ctx_size_tokens)

    def record(self, cache: KVCache, hidden_layers: Collection[int] = ()) -> Recording:
        """Record `Decoder.forward` with this cache, which must be `heads_first`.

        The hidden states of `hidden_layers` are kept. Raises `CannotRecordError` for a model that
        the native kernels cannot compute.
        """
        self._begin(cache)
        hidden = HiddenStates(hidden_layers)
        decoder = Decoder(self._config, self._weights, self)
        logits = self.activations(decoder.forward(_EMPTY, cache, hidden))
        return self._recording(logits, hidden)

    def record_hidden(self, cache: KVCache, hidden_layers: Collection[int] = ()) -> Recording:
        """Record `Decoder.forward_hidden`, as `record` does."""
        self._begin(cache)
        decoder, hidden = Decoder(self._config, self._weights, self), HiddenStates(hidden_layers)
        pooled = self.activations(decoder.forward_hidden(_EMPTY, cache, hidden))
        # The result has a buffer of its own, which `fuse` does not join with others.
        output = self.activations(self.copy(pooled, 1.0))
        return self._recording(output, hidden)

    def _recording(self, output: Activations, hidden: HiddenStates) -> Recording:
        return Recording(
            self.ops,
            self.buffers,
            output.buffer,
            self._references.owners,
            self.deltas,
            {i: self.activations(x).buffer for i, x in hidden.found.items()},
        )

    def _begin(self, cache: KVCache) -> None:
        self.ops, self.buffers, self.deltas = [], [], {}
        self._block_size = self._references.keep(cache).block_size
        self._states = cache.states.layers

    def plan(self, batch: Batch, cache: KVCache) -> None:
        return

    def embed(self, plan: None, table: LinearWeight) -> Tensor:
        matrices = native_matrices(table)
        if len(matrices) != 1 or table.shape[0] != self._config.vocab_size:
            raise CannotRecordError("no kernel reads embeddings in several parts")
        op = native.EmbedOp(scale=1.0, table=matrices[0])
        return self._append(op, RowSet.TOKENS, table.shape[1])

    def add_positions_(self, plan: None, x: Tensor, table: Tensor) -> None:
        last, out = self.ops[-1], self.activations(x)
        positions = self._references.float_matrix(table)
        if isinstance(last, native.EmbedOp) and last.out == out.buffer:
            last.positions = positions
            return
        rows = native.EmbedOp(scale=1.0, positions=positions)
        self.add_(x, self._append(rows, RowSet.TOKENS, out.width))

    def gate(self, x: Tensor, scores: Tensor, *, softplus: bool = False) -> Tensor:
        if softplus:
            raise CannotRecordError("no kernel computes this gate of attention")
        out, gates = self.activations(x), self._columns(scores)
        self._append_to(out, native.GateOp(x=gates.buffer, first=gates.first))
        return out

    def split_gate(self, qkv: Tensor, width: int) -> tuple[Tensor, Tensor]:
        source = self.activations(qkv)
        op = native.DropColumnsOp(x=source.buffer, first=width)
        rest = self._append(op, source.row_set, source.width - width)
        return rest, Activations.of(source.buffer, source.row_set, width, first=width)

    def mix(
        self, plan: None, layer: int, x: Tensor, mixer: MixerWeights, ranks: Communicator
    ) -> Tensor:
        config, parameters = self._config, Parameters(mixer, self._states[layer], self._references)
        own = config.layers[layer]
        assert own.mixer is not None
        ops = parameters.mixer(own.mixer, ACTIVATIONS[own.mixer_activation])
        projected = self.activations(self.linear(x, mixer.project_in, ops.bias))
        last = ops.conv
        ops.conv.x = projected.buffer
        if ops.scan is not None:
            self._append_to(projected, ops.conv)
            ops.scan.x, last = projected.buffer, ops.scan
        mixed = self._append(last, projected.row_set, ops.width)
        return self.linear(mixed, mixer.project_out, mixer.project_out_bias)

    def scale_(self, x: Tensor, scale: float | Tensor) -> None:
        if isinstance(scale, Tensor) and len(scale) > 1:
            raise CannotRecordError("no kernel multiplies the stream by a vector")
        scale = float(scale)  # a weight that does not change
        last, out = self.ops[-1], self.activations(x)
        if isinstance(last, native.EmbedOp) and last.out == out.buffer:
            last.scale *= scale
        else:
            self._add_scaled(out, out, alpha=scale, beta=0.0)

    def cast(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return self.activations(x)  # all activations are fp32

    def copy(self, x: Tensor, scale: float) -> Tensor:
        source = self.activations(x)
        op = native.AddScaledOp(x=source.buffer, alpha=0.0, beta=scale)
        return self._append(op, source.row_set, source.width)

    def norm_(self, x: Tensor, delta: Tensor | None, weight: Tensor, bias: Tensor | None) -> Tensor:
        if delta is not None:
            self.add_(x, delta)
        stream, is_layer = self.activations(x), self._config.norm.kind == "layer"
        norm = self._layer_norm(weight, bias) if is_layer else self._rms_norm(weight)
        op = native.NormOp(x=stream.buffer, norm=norm)
        return self._append(op, stream.row_set, stream.width)

    def norm_inside(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        source = self.activations(x)
        norm = Norm(NormKind.RMS, eps, self._references.floats(weight))
        return self._append(native.NormOp(x=source.buffer, norm=norm), source.row_set, source.width)

    def add_norm_(self, x: Tensor, delta: Tensor, weight: Tensor) -> None:
        out, norm = self.activations(x), self._rms_norm(weight)
        branch = self.activations(delta).buffer
        self._append_to(out, native.NormOp(x=branch, accumulate=1, norm=norm))

    def add_(self, x: Tensor, delta: Tensor) -> None:
        self._add_scaled(self.activations(x), self.activations(delta), alpha=1.0, beta=1.0)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        self.add_(x, y)
        return x

    def replace_(self, x: Tensor, normed: Tensor, scale: float) -> None:
        self._add_scaled(self.activations(x), self.activations(normed), alpha=0.0, beta=scale)

    def linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None) -> Tensor:
        if isinstance(weight, AdaptedWeight):
            return self._adapted_linear(x, weight, bias)
        source, matrices = self.activations(x), native_matrices(weight)
        rows, cols = weight.shape
        if cols != source.width:
            raise CannotRecordError(
                f"{cols} columns are multiplied with {source.width} activations"
            )
        parts = self._references.keep((Matrix * len(matrices))(*matrices))
        op = native.LinearOp(
            x=source.buffer,
            num_parts=len(parts),
            rows=rows,
            exact=self._is_exact,
            parts=parts,
            bias=self._references.floats(bias),
        )
        return self._append(op, source.row_set, rows)

    def _adapted_linear(self, x: Tensor, weight: AdaptedWeight, bias: Tensor | None) -> Tensor:
        out = self.activations(self.linear(x, weight.weight, bias))
        deltas = self._references.keep(NativeDeltas(len(weight.selection.sets)))
        self.deltas[weight.site] = deltas
        op = native.LowRankOp(
            x=self.activations(x).buffer,
            num_sets=len(deltas),
            deltas=deltas.array,
            bias=self._references.floats(bias),
        )
        self._append_to(out, op)
        return out

    def store(self, plan: None, qkv: Tensor, inputs: AttentionInputs) -> None:
        self._attention.check()
        source, cache = self.activations(qkv), layer_cache(inputs.kv, self._block_size)
        self._append_to(source, self._attention.rotary(inputs.layer, cache, inputs.norms))

    def attend(self, plan: None, qkv: Tensor, inputs: AttentionInputs) -> Tensor:
        self.store(plan, qkv, inputs)
        source, cache = self.activations(qkv), layer_cache(inputs.kv, self._block_size)
        op = self._attention.attention(inputs.layer, cache, inputs.sinks)
        op.qkv = source.buffer
        return self._append(op, source.row_set, op.num_heads * op.head_dim)

    def act_and_mul(self, gate_up: Tensor) -> Tensor:
        source, op = self.activations(gate_up), act_and_mul_op(self._config.activation)
        op.x = source.buffer
        return self._append(op, source.row_set, source.width // (2 if op.gated else 1))

    def moe(
        self, layer: int, x: Tensor, experts: Experts, router_input: Tensor | None = None
    ) -> Tensor:
        source = self.activations(x)
        act, config = act_and_mul_op(self._config.activation), self._config.layers[layer].moe
        assert config is not None
        op = moe_op(config, experts, act, self._references, exact=self._is_exact)
        seen = source if router_input is None else self.activations(router_input)
        op.x, op.router_x = source.buffer, seen.buffer
        return self._append(op, source.row_set, source.width)

    def per_layer_embeddings(self, plan: None, x: Tensor, table: PerLayerTable) -> Sequence[Tensor]:
        stream, width, matrices = self.activations(x), len(table.norm), native_matrices(table.embed)
        if len(matrices) != 1:
            raise CannotRecordError("no kernel reads embeddings in several parts")
        own_scale = float(torch.tensor(width**0.5, dtype=table.project.dtype))
        rows = native.EmbedOp(scale=own_scale * 2**-0.5, is_second_table=1, table=matrices[0])
        total = self._append(rows, RowSet.TOKENS, table.embed.shape[1])
        projected = self.activations(self.linear(x, PlainWeight(table.project), None))
        # The projection's scale, the root of 1 / hidden_size, changes only what eps is relative to.
        eps = self._config.norm.eps * stream.width
        norm = Norm(NormKind.RMS, eps, self._references.floats(table.norm))
        op = native.NormOp(x=projected.buffer, group_width=width, norm=norm)
        normed = self._append(op, RowSet.TOKENS, projected.width)
        self._add_scaled(total, normed, alpha=1.0, beta=2**-0.5)
        firsts = range(0, total.width, width)
        return [Activations.of(total.buffer, total.row_set, width, first=first) for first in firsts]

    def per_layer_branch(self, x: Tensor, own: Tensor, branch: PerLayerBranch) -> Tensor:
        gate, factors = self.activations(self.linear(x, branch.gate, None)), self._columns(own)
        act = native.ActAndMulOp(
            x=gate.buffer, activation=ACTIVATIONS[self._config.activation.kind]
        )
        inner = self._append(act, gate.row_set, gate.width)
        op = native.GateOp(x=factors.buffer, first=factors.first, is_plain=1)
        self._append_to(inner, op)
        return self.norm_(self.linear(inner, branch.out, None), None, branch.out_norm, None)

    def logits_rows(self, plan: None, x: Tensor) -> Tensor:
        source = self.activations(x)
        return self._append(native.GatherOp(x=source.buffer), RowSet.LOGITS, source.width)

    def logits(self, x: Tensor, lm_head: LinearWeight, bias: Tensor | None) -> Tensor:
        return self.linear(x, lm_head, bias)

    def softcap_(self, logits: Tensor, cap: float) -> Tensor:
        out = self.activations(logits)
        self._append_to(out, native.SoftcapOp(cap=cap))
        return out

    def copy_blocks(self, cache: KVCache, copies: Sequence[tuple[int, int]]) -> None:
        cache.copy_blocks(copies)

    def activations(self, x: Tensor | None) -> Activations:
        """Return x if an operation was recorded that writes it: all columns of a buffer."""
        found = self._columns(x)
        if found.first or found.width != self.buffers[found.buffer][1]:
            raise CannotRecordError("no kernel reads some columns of these activations")
        return found

    def _columns(self, x: Tensor | None) -> Activations:
        if not isinstance(x, Activations):
            raise CannotRecordError("an operation has an input that none has returned")
        return x

    def _append(self, op: Structure, row_set: RowSet, width: int) -> Activations:
        """Append an operation that writes a new buffer."""
        out = Activations.of(len(self.buffers), row_set, width)
        self.buffers.append((row_set, width))
        self._append_to(out, op)
        return out

    def _append_to(self, out: Activations, op: Structure) -> None:
        op.header.row_set = out.row_set
        setattr(op, native.target_field(type(op)), out.buffer)
        self.ops.append(op)

    def _add_scaled(self, out: Activations, x: Activations, alpha: float, beta: float) -> None:
        self._append_to(out, native.AddScaledOp(x=x.buffer, alpha=alpha, beta=beta))

    def _rms_norm(self, weight: Tensor) -> Norm:
        scale = self._references.keep(weight.float() + float(self._config.norm.unit_offset))
        return Norm(NormKind.RMS, self._config.norm.eps, scale.data_ptr())

    def _layer_norm(self, weight: Tensor, bias: Tensor | None) -> Norm:
        scale, eps = self._references.floats(weight), self._config.norm.eps
        return Norm(NormKind.LAYER, eps, scale, self._references.floats(bias))
