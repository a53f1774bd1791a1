"""Record the operations of a decoder's forward pass for the native kernels."""

from collections.abc import Collection, Mapping, Sequence
from ctypes import POINTER, cast
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from swiftchat.engine.cpu import structures as native
from swiftchat.engine.cpu.activations import Activations, CannotRecordError
from swiftchat.engine.cpu.experts import moe_op
from swiftchat.engine.cpu.low_rank import NativeDeltas
from swiftchat.engine.cpu.mixers import Parameters, Scan
from swiftchat.engine.cpu.recording import Recording
from swiftchat.engine.cpu.references import References
from swiftchat.engine.cpu.structures import (
    Activation,
    AnyOp,
    KVFormat,
    Matrix,
    Norm,
    NormKind,
    OpHeader,
    RowSet,
)
from swiftchat.engine.cpu.weights import native_matrices
from swiftchat.engine.cpu.without_kernels import WithoutKernels
from swiftchat.engine.linear.adapted import AdaptedWeight, Site
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.mixers.states import LayerStates
from swiftchat.engine.mixers.weights import MixerWeights
from swiftchat.engine.model.attention import alibi_slopes
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.hidden_states import HiddenStates
from swiftchat.engine.model.kv_cache import KVCache, LayerKV
from swiftchat.engine.model.latent_attention import LatentWeights
from swiftchat.engine.model.moe import Experts
from swiftchat.engine.model.rope import cos_sin_table, query_factor_table
from swiftchat.engine.model.weights import DecoderWeights
from swiftchat.engine.schedule.batch import Batch
from swiftchat.weights.architectures.config import ModelConfig

_ACTIVATIONS = MappingProxyType(
    {
        "silu": Activation.SILU,
        "relu": Activation.RELU,
        "gelu": Activation.GELU,
        "gelu_tanh": Activation.GELU_TANH,
        "gelu_sigmoid": Activation.GELU_SIGMOID,
        "relu2": Activation.RELU2,
    }
)
_KV_FORMATS = {
    torch.float32: KVFormat.F32,
    torch.float16: KVFormat.F16,
    torch.bfloat16: KVFormat.BF16,
    "int8": KVFormat.INT8,
    "fp8": KVFormat.FP8,
    "int5": KVFormat.INT5,
}
_EMPTY = Batch([], [], [], [], [], [])


class Recorder(WithoutKernels):
    """`Ops` that list a decoder's operations for the native kernels and compute nothing."""

    heads_first = True

    def __init__(self, config: ModelConfig, weights: DecoderWeights, ctx_size_tokens: int) -> None:
        self.ops: list[AnyOp] = []
        self.buffers: list[tuple[RowSet, int]] = []
        self._references = References(weights)
        self.deltas: dict[Site, NativeDeltas] = {}
        self._config, self._weights = config, weights
        self._is_exact = weights.dtype == torch.float32
        self._block_size = 0
        self._states: Mapping[int, LayerStates] = MappingProxyType({})
        cpu = torch.device("cpu")
        self._cos_sin = [
            self._references.keep(cos_sin_table(rope, config.head_dim, ctx_size_tokens, cpu))
            for rope in (config.rope, config.local_rope)
            if rope is not None
        ]
        self._num_positions = ctx_size_tokens
        factors = query_factor_table(config.query_growth, ctx_size_tokens, cpu)
        self._query_factors = None if factors is None else self._references.keep(factors)
        self._slopes = self._references.keep(alibi_slopes(config)) if config.alibi else None

    def record(self, cache: KVCache, hidden_layers: Collection[int] = ()) -> Recording:
        """Record `Decoder.forward` with this cache, which must be `heads_first`.

        The hidden states of `hidden_layers` are kept. Raises `CannotRecordError` for a model that
        the native kernels cannot compute.
        """
        self._begin(cache)
        hidden = HiddenStates(hidden_layers)
        decoder = Decoder(self._config, self._weights, self)
        logits = self.activations(decoder.forward(_EMPTY, cache, hidden))
        recording = Recording(
            self.ops, self.buffers, logits.buffer, self._references.owners, self.deltas
        )
        recording.hidden = {i: self.activations(x).buffer for i, x in hidden.found.items()}
        return recording

    def record_hidden(self, cache: KVCache) -> Recording:
        """Record `Decoder.forward_hidden`, as `record` does."""
        self._begin(cache)
        decoder = Decoder(self._config, self._weights, self)
        hidden = self.activations(decoder.forward_hidden(_EMPTY, cache))
        # The result has a buffer of its own, which `fuse` does not join with others.
        output = self.activations(self.copy(hidden, 1.0))
        return Recording(self.ops, self.buffers, output.buffer, self._references.owners)

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

    def gate(self, x: Tensor, scores: Tensor) -> Tensor:
        out, gates = self.activations(x), self._columns(scores)
        self._append_to(out, native.GateOp(x=gates.buffer, first=gates.first))
        return out

    def split_gate(self, qkv: Tensor, width: int) -> tuple[Tensor, Tensor]:
        source = self.activations(qkv)
        op = native.DropColumnsOp(x=source.buffer, first=width)
        rest = self._append(op, source.row_set, source.width - width)
        return rest, Activations.of(source.buffer, source.row_set, width, first=width)

    def mix(self, plan: None, layer: int, x: Tensor, mixer: MixerWeights) -> Tensor:
        config, parameters = self._config, Parameters(mixer, self._states[layer], self._references)
        assert config.mixer is not None
        activation = _ACTIVATIONS[config.mixer_activation or config.activation]
        ops = parameters.mixer(config.mixer, activation)
        projected = self.activations(self.linear(x, mixer.project_in, ops.bias))
        last: native.ConvOp | Scan = ops.conv
        ops.conv.x = projected.buffer
        if ops.scan is not None:
            self._append_to(projected, ops.conv)
            ops.scan.x, last = projected.buffer, ops.scan
        mixed = self._append(last, projected.row_set, ops.width)
        return self.linear(mixed, mixer.project_out, mixer.project_out_bias)

    def scale_(self, x: Tensor, scale: float | Tensor) -> None:
        if isinstance(scale, Tensor):
            raise CannotRecordError("no kernel multiplies with a number in memory")
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
        stream, is_layer = self.activations(x), self._config.norm == "layer"
        norm = self._layer_norm(weight, bias) if is_layer else self._rms_norm(weight)
        op = native.NormOp(x=stream.buffer, norm=norm)
        return self._append(op, stream.row_set, stream.width)

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
            parts=cast(parts, POINTER(Matrix)),
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
            deltas=deltas.pointer,
            bias=self._references.floats(bias),
        )
        self._append_to(out, op)
        return out

    def attend(
        self,
        plan: None,
        layer: int,
        qkv: Tensor,
        kv: LayerKV,
        norms: tuple[Tensor, Tensor] | None,
        sinks: Tensor | None,
        latent: LatentWeights | None,
    ) -> Tensor:
        if latent is not None:
            raise CannotRecordError("no kernel computes latent attention")
        if self._num_positions > (self._config.attention_chunk or self._num_positions):
            raise CannotRecordError("no kernel attends in chunks")
        if self._config.layer_sizes or self._config.kv_sources or self._config.value_norm:
            raise CannotRecordError("no kernel computes layers with heads of different sizes")
        config, source = self._config, self.activations(qkv)
        heads = {
            "num_heads": config.num_heads,
            "num_kv_heads": config.num_kv_heads,
            "head_dim": config.head_dim,
        }
        cache = self._layer_cache(kv)
        rotary = native.RotaryOp(**heads, norm_width=config.head_dim, cache=cache)
        if norms is not None:
            rotary.q_norm = self._head_norm(norms[0], config.num_heads)
            rotary.k_norm = self._head_norm(norms[1], config.num_kv_heads)
            if config.qk_norm == "width":
                rotary.norm_width = 0
            rotary.norm_after = config.qk_norm_after_rope
        self._rotate(rotary, layer)
        rotary.qkv = source.buffer
        self._append_to(source, rotary)
        op = native.AttentionOp(
            **heads,
            qkv=source.buffer,
            window=config.window(layer) or 0,
            scale=config.attention_scale,
            softcap=config.attention_softcap or 0.0,
            slopes=None if self._slopes is None else self._slopes.data_ptr(),
            sinks=self._references.floats(sinks),
            cache=cache,
        )
        return self._append(op, source.row_set, config.num_heads * config.head_dim)

    def act_and_mul(self, gate_up: Tensor) -> Tensor:
        source, op = self.activations(gate_up), self._act_and_mul()
        op.x = source.buffer
        return self._append(op, source.row_set, source.width // (2 if op.gated else 1))

    def moe(
        self, layer: int, x: Tensor, experts: Experts, router_input: Tensor | None = None
    ) -> Tensor:
        if router_input is not None:
            raise CannotRecordError("no kernel computes a router with an input of its own")
        source = self.activations(x)
        act = self._act_and_mul()
        op = moe_op(self._config, experts, act, self._references, exact=self._is_exact)
        op.x = source.buffer
        return self._append(op, source.row_set, source.width)

    def logits_rows(self, plan: None, x: Tensor) -> Tensor:
        source = self.activations(x)
        return self._append(native.GatherOp(x=source.buffer), RowSet.LOGITS, source.width)

    def logits(self, x: Tensor, lm_head: LinearWeight, bias: Tensor | None) -> Tensor:
        return self.linear(x, lm_head, bias)

    def softcap_(self, logits: Tensor, cap: float) -> Tensor:
        out = self.activations(logits)
        self._append_to(out, native.SoftcapOp(x=out.buffer, cap=cap))
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

    def _append(self, op: Any, row_set: RowSet, width: int) -> Activations:
        """Append an operation that writes a new buffer."""
        out = Activations.of(len(self.buffers), row_set, width)
        self.buffers.append((row_set, width))
        self._append_to(out, op)
        return out

    def _append_to(self, out: Activations, op: Any) -> None:
        op.header = OpHeader(op.KIND, out.row_set)
        if not isinstance(op, native.RotaryOp | native.SoftcapOp):  # in place
            op.out = out.buffer
        self.ops.append(op)

    def _add_scaled(self, out: Activations, x: Activations, alpha: float, beta: float) -> None:
        self._append_to(out, native.AddScaledOp(x=x.buffer, alpha=alpha, beta=beta))

    def _act_and_mul(self) -> native.ActAndMulOp:
        config = self._config
        return native.ActAndMulOp(
            activation=_ACTIVATIONS[config.activation],
            gated=config.gated,
            interleaved=config.gated and config.interleaved_gate,
            gate_limit=(config.gate_limit or 0.0) if config.gated else 0.0,
            gate_scale=config.gate_scale if config.gate_scale != 1.0 else 0.0,
        )

    def _rotate(self, op: native.RotaryOp, layer: int) -> None:
        """Set the angles and query factors of a layer as `TorchOps.attend` chooses them."""
        config = self._config
        if config.growth(layer) is not None and self._query_factors is not None:
            op.query_factors = self._query_factors.data_ptr()
        if not self._cos_sin or layer in config.unrotated_layers:
            return
        table = self._cos_sin[0 if config.window(layer) is None else -1]
        op.cos_sin, op.num_positions = table.data_ptr(), self._num_positions
        op.two_dimensional = config.rope is not None and config.rope.two_dimensional

    def _layer_cache(self, kv: LayerKV) -> native.LayerCache:
        if isinstance(kv, Tensor):
            return native.LayerCache(_KV_FORMATS[kv.dtype], self._block_size, kv.data_ptr())
        return native.LayerCache(
            format=_KV_FORMATS[kv.scheme],
            block_size=self._block_size,
            values=kv.values.data_ptr(),
            scales=kv.scales.data_ptr(),
            key_bits=None if kv.key_bits is None else kv.key_bits.data_ptr(),
            value_bits=None if kv.value_bits is None else kv.value_bits.data_ptr(),
        )

    def _rms_norm(self, weight: Tensor) -> Norm:
        scale = self._references.keep(weight.float() + float(self._config.norm_unit_offset))
        return Norm(NormKind.RMS, self._config.norm_eps, scale.data_ptr())

    def _layer_norm(self, weight: Tensor, bias: Tensor | None) -> Norm:
        scale, eps = self._references.floats(weight), self._config.norm_eps
        return Norm(NormKind.LAYER, eps, scale, self._references.floats(bias))

    def _head_norm(self, weight: Tensor, num_heads: int) -> Norm:
        """Return the norm of queries or keys, with weights for the elements of all heads."""
        config = self._config
        kind = NormKind.RMS if config.norm == "rms" else NormKind.LAYER
        scale = weight.float() + float(config.norm_unit_offset)
        if len(scale) == config.head_dim:
            scale = scale.repeat(num_heads)
        return Norm(kind, config.norm_eps, self._references.keep(scale).data_ptr())
