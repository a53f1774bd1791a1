"""Which part of every tensor each of several ranks needs, so that a layer takes two sums over them.

Shoeybi et al., 2019 (arXiv:1909.08053): what makes queries, keys, values and an FFN's inner numbers
is divided by rows, and what reads them by columns, so each rank makes a part of a sum. Key heads of
which there are fewer than ranks are on several. Of experts every rank has a part of each, as of a
plain FFN: whatever the router chooses, all ranks have the same to do. Where there are several
stages (`stages`), the ranks of each divide its layers so.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from swiftchat.errors import UsageError
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.registry import ARCHITECTURES
from swiftchat.weights.architectures.tensors import (
    canonical_shapes,
    canonical_tensors,
    index_count,
    layer_tensors,
    tensor_name,
    tensors_after_layers,
    tensors_before_layers,
)
from swiftchat.weights.parallel.pipeline import stage_layers

__all__ = ["Shard", "TensorSlice", "shard_of", "tp_choices"]

Span = tuple[int, int]
# Canonical name, layer, and number of an expert or head, where there are such.
Place = tuple[str, int | None, int | None]

# Read by their columns; all others that are divided by their rows.
_BY_COLUMNS = frozenset({"o", "down", "expert_down", "experts_down", "shared_down"})
# Added to a sum over the ranks, and therefore by one of them only.
_ONCE = frozenset({"o_bias", "down_bias", "experts_down_bias"})
_WHOLE = frozenset(
    {"positions", "project_in", "project_out", "router", "router_bias", "shared_router"}
    | {
        name + bias
        for name in (
            "embed_norm",
            "attn_norm",
            "mlp_norm",
            "attn_out_norm",
            "mlp_out_norm",
            "final_norm",
        )
        for bias in ("", "_bias")
    }
)


@dataclass(frozen=True)
class TensorSlice:
    """What a rank needs of a stored tensor: along `axis`, the `spans`.

    A span is (first, end). The spans lie in the file in their order.
    """

    axis: int
    spans: tuple[Span, ...]

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """The shape of this part of a tensor of shape `whole`."""
        length = sum(end - first for first, end in self.spans)
        return (*whole[: self.axis], length, *whole[self.axis + 1 :])


@dataclass(frozen=True)
class Shard:
    """What `rank` of `size` has of a stage's layers of the model `config`; one of one has it all.

    Made by `shard_of`, which refuses what cannot be divided. Spans are (first, end).
    """

    config: ModelConfig
    size: int = 1
    rank: int = 0
    stage: int = 0
    num_stages: int = 1

    @property
    def is_whole(self) -> bool:
        """Whether this is the whole model."""
        return self.size == self.num_stages == 1

    @cached_property
    def layers(self) -> Span:
        """The layers of this stage."""
        if self.num_stages == 1:
            return (0, self.config.num_layers)
        return stage_layers(self.config, self.num_stages)[self.stage]

    @property
    def heads(self) -> Span:
        """The query heads."""
        return self._of(self.config.num_heads)

    @property
    def kv_heads(self) -> Span:
        """The heads of keys and values; where there are fewer than ranks, one, as its neighbors.

        They are those that `heads` read.
        """
        kv_heads = self.config.num_kv_heads
        if kv_heads >= self.size:
            return self._of(kv_heads)
        head = self.rank * kv_heads // self.size
        return (head, head + 1)

    @property
    def inner(self) -> Span:
        """The inner numbers of a plain FFN."""
        return self._of(self.config.intermediate_size)

    @property
    def vocab(self) -> Span:
        """The token ids whose embeddings and logits this rank has; the last rank may have fewer.

        Not padded, so that files stay what they are and no padding can be chosen; all but the
        last being equal, logits put side by side need only their end cut off.
        """
        each = -(-self.config.vocab_size // self.size)
        return (self.rank * each, min((self.rank + 1) * each, self.config.vocab_size))

    @cached_property
    def local_config(self) -> ModelConfig:
        """What this rank computes, as a model: with its layers, heads and inner numbers only.

        What all ranks have in common stays as it is, and so does `vocab_size`.
        """
        if self.is_whole:
            return self.config
        first, end = self.layers

        def own(layers: frozenset[int]) -> frozenset[int]:
            return frozenset(layer - first for layer in layers if first <= layer < end)

        return dataclasses.replace(
            self.config,
            num_layers=end - first,
            full_layers=own(self.config.full_layers),
            unrotated_layers=own(self.config.unrotated_layers),
            dense_layers=own(self.config.dense_layers),
            num_heads=_length(self.heads),
            num_kv_heads=_length(self.kv_heads),
            intermediate_size=_length(self.inner),
            expert_size=_length(self._of(self.config.expert_size)),
            shared_expert_size=_length(self._of(self.config.shared_expert_size)),
        )

    @cached_property
    def slices(self) -> Mapping[str, TensorSlice | None]:
        """The part of every tensor by canonical name; None: this rank does without."""
        shapes, elsewhere = canonical_shapes(self.config), self._elsewhere()
        return {
            name: None if name in elsewhere else self._part(name, shapes[name])
            for name in _canonical_names(self.config)
        }

    def indices(self, canonical: str) -> Sequence[int | None]:
        """Of a tensor that the files keep one by one, for each expert or head, those it has.

        Only None for any other.
        """
        count = index_count(self.config, canonical)
        if count is None:
            return [None]
        heads = {"q_norm": self.heads, "k_norm": self.kv_heads}
        return range(*heads.get(canonical, (0, count)))

    def own_tensors(self) -> Iterator[tuple[Place, TensorSlice]]:
        """Every tensor this rank has, as `canonical_tensors` names it, and the part of it."""
        own = {
            name: (part, set(self.indices(name)))
            for name, part in self.slices.items()
            if part is not None
        }
        first, end = self.layers
        for canonical, layer, number in canonical_tensors(self.config):
            part, numbers = own.get(canonical, (None, set()))
            here = layer is None or first <= layer < end
            if part is not None and number in numbers and here:
                yield (canonical, layer, number), part

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor this rank has, by Hugging Face name, in the order of the files."""
        whole = canonical_shapes(self.config)
        return {
            tensor_name(self.config, *place): part.shape(whole[place[0]])
            for place, part in self.own_tensors()
        }

    def weights_bytes(self, nbytes: Mapping[str, int]) -> int:
        """Of tensors that have `nbytes` in all, by Hugging Face name, the bytes of this rank."""
        whole = canonical_shapes(self.config)
        return sum(
            nbytes[tensor_name(self.config, *place)]
            * math.prod(part.shape(whole[place[0]]))
            // math.prod(whole[place[0]])
            for place, part in self.own_tensors()
        )

    def _elsewhere(self) -> set[str]:
        """Canonical names of what belongs before or after the layers, and to other stages alone."""
        before, after = (
            set(tensors_before_layers(self.config)),
            set(tensors_after_layers(self.config)),
        )
        if self.config.tied_embeddings:
            after.add("embed")  # the head is the embedding once more
        own = before if self.stage == 0 else set()
        if self.stage == self.num_stages - 1:
            own = own | after
        return (before | after) - own

    def _of(self, length: int) -> Span:
        each = length // self.size
        return (self.rank * each, (self.rank + 1) * each)

    def _part(self, canonical: str, shape: tuple[int, ...]) -> TensorSlice | None:
        whole = TensorSlice(0, ((0, shape[0]),))
        if self.size == 1 or canonical in _WHOLE:
            return whole
        if canonical in _ONCE:
            return whole if self.rank == 0 else None
        if canonical in ("q_norm", "k_norm") and self.config.qk_norm != "width":
            return whole
        spans = tuple(self._spans(canonical))
        if len(shape) == 1 or canonical.endswith("_bias"):
            return TensorSlice(len(shape) - 1, spans)
        transposed = canonical in ARCHITECTURES[self.config.architecture].transposed
        by_last = (canonical in _BY_COLUMNS) != transposed
        return TensorSlice(len(shape) - (1 if by_last else 2), spans)

    def _spans(self, canonical: str) -> Sequence[Span]:
        config = self.config
        inner, narrow = self.inner, self._of(config.expert_size)
        queries, keys = (self._rows(heads) for heads in (self.heads, self.kv_heads))
        match canonical.removesuffix("_bias"):
            case "embed" | "lm_head":
                return [self.vocab]
            case "q" | "q_norm" | "o":
                return [queries]
            case "k" | "k_norm" | "v":
                return [keys]
            case "qkv":
                return self._fused_qkv(queries, keys)
            case "sinks":
                return [self.heads]
            case "gate" | "up" | "down":
                return [inner]
            case "gate_up":
                return self._gates_and_ups(inner, config.intermediate_size)
            case "expert_gate" | "expert_up" | "expert_down" | "experts_down":
                return [narrow]
            case "experts_gate_up":
                return self._gates_and_ups(narrow, config.expert_size)
            case "shared_gate" | "shared_up" | "shared_down":
                return [self._of(config.shared_expert_size)]
        raise _no_rule(self.config, canonical)

    def _gates_and_ups(self, inner: Span, width: int) -> Sequence[Span]:
        if self.config.interleaved_gate:
            return [(2 * inner[0], 2 * inner[1])]
        return [inner, _moved(inner, width)]

    def _fused_qkv(self, queries: Span, keys: Span) -> Sequence[Span]:
        """The rows of queries, keys and values in one tensor, in the order of the file."""
        config, size = self.config, self.config.head_dim
        if not ARCHITECTURES[config.architecture].qkv_in_groups:
            k_start = config.num_heads * size
            v_start = k_start + config.num_kv_heads * size
            return [queries, _moved(keys, k_start), _moved(keys, v_start)]
        per_group = config.num_heads // config.num_kv_heads
        first, end = self.kv_heads
        start, group_rows = first * (per_group + 2) * size, (per_group + 2) * size
        if config.num_kv_heads >= self.size:
            return [(start, start + (end - first) * group_rows)]
        # A part of one group's query heads, and then its key and value head.
        inside = _moved(queries, start - first * per_group * size)
        return [inside, (start + per_group * size, start + group_rows)]

    def _rows(self, heads: Span) -> Span:
        return (heads[0] * self.config.head_dim, heads[1] * self.config.head_dim)


def shard_of(
    config: ModelConfig, size: int, rank: int, stage: int = 0, num_stages: int = 1
) -> Shard:
    """What `rank` of `size` has of a stage; `UsageError` says what cannot be divided so.

    Every stage has `size` ranks.
    """
    complaint = _complaint(config, size)
    if complaint:
        known = ", ".join(map(str, tp_choices(config)))
        raise UsageError(complaint, f"this model can be divided with --tp {known}")
    if not 0 <= rank < size:
        raise UsageError(f"rank {rank} is none of --tp {size}")
    share = Shard(config, size, rank, stage, num_stages)
    _ = share.layers
    return share


def tp_choices(config: ModelConfig) -> tuple[int, ...]:
    """The numbers of ranks that this model can be divided into, 1 the first."""
    return tuple(n for n in range(1, config.num_heads + 1) if _complaint(config, n) is None)


def _complaint(config: ModelConfig, size: int) -> str | None:
    heads, kv_heads = config.num_heads, config.num_kv_heads
    vocab_size, names = config.vocab_size, _canonical_names(config)
    if size < 1:
        return f"--tp {size} is less than 1"
    if size == 1:
        return None
    if heads % size:
        return f"num_attention_heads {heads} is not divisible by --tp {size}: heads stay whole"
    if kv_heads % size and size % kv_heads:
        return (
            f"num_key_value_heads {kv_heads} is not divisible by --tp {size}, "
            "nor can each be on as many ranks as the others"
        )
    for field, used in (
        ("intermediate_size", "down" in names),
        ("expert_size", True),
        ("shared_expert_size", True),
    ):
        if used and getattr(config, field) % size:
            return f"{field} {getattr(config, field)} is not divisible by --tp {size}"
    if (size - 1) * -(-vocab_size // size) >= vocab_size:
        return f"vocab_size {vocab_size} leaves nothing for the last rank of --tp {size}"
    try:
        _ = Shard(config, size).slices
    except UsageError as error:
        return error.message
    return None


def _canonical_names(config: ModelConfig) -> list[str]:
    of_layers = {
        name: None for layer in range(config.num_layers) for name in layer_tensors(config, layer)
    }
    return [*tensors_before_layers(config), *of_layers, *tensors_after_layers(config)]


def _no_rule(config: ModelConfig, canonical: str) -> UsageError:
    return UsageError(f"models of the family {config.family} are not divided yet: {canonical}")


def _length(span: Span) -> int:
    return span[1] - span[0]


def _moved(span: Span, by: int) -> Span:
    return (span[0] + by, span[1] + by)
