"""The rules of tensor parallelism: which part of each tensor of a layer a rank has."""

from collections.abc import Sequence
from dataclasses import dataclass

from swiftchat.errors import UsageError
from swiftchat.weights.architectures.parts.attention import Attention
from swiftchat.weights.architectures.parts.layers import LayerConfig
from swiftchat.weights.architectures.parts.mlp import Activation, Mlp, Moe
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.registry import ARCHITECTURES
from swiftchat.weights.architectures.tensors import (
    EXPERT_NORMS,
    NORMS,
    STREAM_TENSORS,
    gate_in_queries,
)
from swiftchat.weights.parallel.mixer_division import mixer_axis, mixer_spans

Span = tuple[int, int]
"""A contiguous range: first index and end."""

# Divided by columns; all other divided tensors are divided by rows.
_BY_COLUMNS = frozenset({"o", "down", "expert_down", "experts_down", "shared_down"})
# Added after an all-reduce would count them once per rank, so only one rank has them.
_RANK_0_ONLY = frozenset({"o_bias", "down_bias", "experts_down_bias", "mixer_out_bias"})
_REPLICATED = frozenset(
    {"positions", "project_in", "project_out"}
    | {"q_a", "q_a_bias", "q_a_norm", "kv_a", "kv_a_bias", "kv_a_norm"}
    | {"index_q", "index_k", "index_weights", "index_norm", "index_norm_bias"}
    | {"xielu_positive", "xielu_negative"}
    | {"router", "router_bias", "router_correction", "shared_router"}
    | {"stream_in", "stream_out", *STREAM_TENSORS}
    | {"router_scale", "expert_scales", "layer_scale"}
    | {"expert_in", "expert_out"}
    | {"ple_embed", "ple_project", "ple_project_norm", "ple_gate", "ple_out", "ple_out_norm"}
    | {name + bias for name in (*NORMS, *EXPERT_NORMS) for bias in ("", "_bias")}
)


@dataclass(frozen=True)
class TensorSlice:
    """The part of a stored tensor that a rank holds: the ascending `spans` along `axis`."""

    axis: int
    spans: tuple[Span, ...]

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of this slice of a tensor of shape `whole`."""
        length = sum(end - first for first, end in self.spans)
        return (*whole[: self.axis], length, *whole[self.axis + 1 :])


@dataclass(frozen=True)
class Division:
    """What `rank` of `size` has of a layer, or outside the layers. Spans are (first, end)."""

    config: ModelConfig
    size: int
    rank: int
    layer: LayerConfig | None = None

    @property
    def attention(self) -> Attention:
        """The attention of the layer."""
        own = None if self.layer is None else self.layer.attention
        return self.config.attention if own is None else own

    @property
    def heads(self) -> Span:
        """The query heads."""
        return self._span_of(self.attention.num_heads)

    @property
    def kv_heads(self) -> Span:
        """The key/value heads that `heads` use; one, shared with other ranks, if there are few."""
        kv_heads = self.attention.num_kv_heads
        if kv_heads >= self.size:
            return self._span_of(kv_heads)
        head = self.rank * kv_heads // self.size
        return (head, head + 1)

    @property
    def vocab(self) -> Span:
        """The token ids whose embeddings and logits this rank has; the last rank may have fewer.

        There is no padding, so files keep their shapes and no padding id can be sampled. All
        ranks but the last have equally many, so gathered logits only need their end cut off.
        """
        each = -(-self.config.vocab_size // self.size)
        return (self.rank * each, min((self.rank + 1) * each, self.config.vocab_size))

    def _span_of(self, length: int) -> Span:
        each = length // self.size
        return (self.rank * each, (self.rank + 1) * each)

    def slice_of(self, canonical: str, shape: tuple[int, ...]) -> TensorSlice | None:
        """Return the slice of a tensor of this shape; None: this rank does not have it."""
        num_rows = self.config.vocab_size if canonical == "embed" else shape[0]
        whole = TensorSlice(0, ((0, num_rows),))
        if self.size == 1 or canonical in _REPLICATED:
            return whole
        if canonical in _RANK_0_ONLY:
            return whole if self.rank == 0 else None
        if canonical.startswith("mixer_"):
            assert self.layer is not None and self.layer.mixer is not None
            own = mixer_spans(self.layer.mixer, canonical, self.size, self.rank)
            return whole if own is None else TensorSlice(mixer_axis(canonical, len(shape)), own)
        if canonical in ("q_norm", "k_norm") and self._norms_over != "width":
            # Separate weights of the heads: in one tensor, or in a tensor of each head.
            return TensorSlice(0, tuple(self._spans(canonical))) if len(shape) == 2 else whole
        spans = tuple(self._spans(canonical))
        if len(shape) == 1 or canonical.endswith("_bias"):
            return TensorSlice(len(shape) - 1, spans)
        transposed = canonical in ARCHITECTURES[self.config.architecture].transposed
        by_last = (canonical in _BY_COLUMNS) != transposed
        return TensorSlice(len(shape) - (1 if by_last else 2), spans)

    def _spans(self, canonical: str) -> Sequence[Span]:
        config, attention = self.config, self.attention
        heads = (self.heads, self.kv_heads)
        queries, keys = (_times(span, attention.head_dim) for span in heads)
        match canonical.removesuffix("_bias"):
            case "embed" | "lm_head":
                return [self.vocab]
            case "q_norm" | "k_norm" if self._norms_over == "heads":
                return [self.heads if canonical == "q_norm" else self.kv_heads]
            case "q" if gate_in_queries(config):
                return [_times(queries, 2)]
            case "attn_gate" if attention.gate is not None and attention.gate.by_head:
                return [self.heads]
            case "q" | "q_b" | "q_norm" | "attn_gate":
                return [queries]
            case "o":
                return [_times(self.heads, attention.values.dim)]
            case "kv_b" if attention.latent is not None:
                latent = attention.latent
                return [_times(self.heads, latent.nope_dim + latent.value_dim)]
            case "k" | "k_norm":
                return [keys]
            case "v":
                return [_times(self.kv_heads, attention.values.dim)]
            case "qkv":
                return self._merged_qkv(queries, keys)
            case "sinks":
                return [self.heads]
            case "gate" | "up" | "down":
                return [self._span_of(self._mlp.intermediate_size)]
            case "gate_up":
                return self._merged_gate_up(self._mlp.intermediate_size, self._mlp.activation)
            case "expert_gate" | "expert_up" | "expert_down" | "experts_down":
                return [self._span_of(self._moe.expert_size)]
            case "experts_gate_up":
                return self._merged_gate_up(self._moe.expert_size, self._moe.activation)
            case "shared_gate_up":
                return self._merged_gate_up(self._moe.shared_size, self._moe.activation)
            case "shared_gate" | "shared_up" | "shared_down":
                return [self._span_of(self._moe.shared_size)]
        raise UsageError(
            f"tensor parallelism is not supported for {config.architecture}: "
            f"no rule for the tensor {canonical}"
        )

    @property
    def _norms_over(self) -> str | None:
        norms = self.attention.head_norms
        return None if norms is None else norms.over

    @property
    def _mlp(self) -> Mlp:
        assert self.layer is not None and self.layer.mlp is not None
        return self.layer.mlp

    @property
    def _moe(self) -> Moe:
        assert self.layer is not None and self.layer.moe is not None
        return self.layer.moe

    def _merged_gate_up(self, width: int, activation: Activation) -> Sequence[Span]:
        first, end = self._span_of(width)
        if activation.interleaved:
            return [(2 * first, 2 * end)]
        return [(first, end), (width + first, width + end)]

    def _merged_qkv(self, queries: Span, keys: Span) -> Sequence[Span]:
        """Return the rows of queries, keys and values in the merged tensor, in file order."""
        config, size = self.attention, self.attention.head_dim
        if not ARCHITECTURES[self.config.architecture].qkv_in_groups:
            k_start = config.num_heads * size
            v_start = k_start + config.num_kv_heads * size
            return [queries, _shifted(keys, k_start), _shifted(keys, v_start)]
        per_group = config.num_heads // config.num_kv_heads
        first, end = self.kv_heads
        start, group_rows = first * (per_group + 2) * size, (per_group + 2) * size
        if config.num_kv_heads >= self.size:
            return [(start, start + (end - first) * group_rows)]
        # Some query heads of one group, and the group's key and value head.
        inside = _shifted(queries, start - first * per_group * size)
        return [inside, (start + per_group * size, start + group_rows)]


def length(span: Span) -> int:
    return span[1] - span[0]


def _times(span: Span, size: int) -> Span:
    return (span[0] * size, span[1] * size)


def _shifted(span: Span, by: int) -> Span:
    return (span[0] + by, span[1] + by)
