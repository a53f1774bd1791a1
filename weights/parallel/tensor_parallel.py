"""Tensor parallelism: the slice of every tensor that each rank holds.

As in Megatron-LM (Shoeybi et al., 2019, arXiv:1909.08053): the matrices that compute queries,
keys, values and the MLP's intermediate activations are divided by rows, the matrices that read
those by columns. Each layer then needs two all-reduces. With more ranks than key/value heads,
several ranks hold the same head. Every rank holds a slice of every expert, so the work of a rank
does not depend on the router. With pipeline stages, the ranks of a stage divide its layers so.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from swiftchat.errors import UsageError
from swiftchat.weights.architectures.parts.layers import LayerConfig
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.tensors import (
    canonical_shapes,
    canonical_tensors,
    index_count,
    layer_shapes,
    layer_tensors,
    shape_by_place,
    tensor_name,
    tensors_after_layers,
    tensors_before_layers,
)
from swiftchat.weights.parallel.division import Division, Span, TensorSlice, length
from swiftchat.weights.parallel.mixer_division import divisible_units, local_mixer, mixer_problem
from swiftchat.weights.parallel.pipeline import stage_layers

TensorKey = tuple[str, int | None, int | None]
"""Canonical name, layer, and index of an expert or head, where they apply."""


@dataclass(frozen=True)
class Shard:
    """The shard of tensor-parallel `rank` of `size` in pipeline `stage` of a model.

    `shard_of` creates it and rejects models that cannot be divided. The defaults are the whole
    model. Spans are (first, end).
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

    @cached_property
    def division(self) -> Division:
        """What this rank has of the tensors of a layer."""
        return Division(self.config, self.size, self.rank)

    @property
    def heads(self) -> Span:
        """The query heads."""
        return self.division.heads

    @property
    def kv_heads(self) -> Span:
        """The key/value heads that `heads` use; one, shared with other ranks, if there are few."""
        return self.division.kv_heads

    @property
    def vocab(self) -> Span:
        """The token ids whose embeddings and logits this rank has; the last rank may have fewer."""
        return self.division.vocab

    @cached_property
    def local_config(self) -> ModelConfig:
        """The config of this shard: its layers, heads and intermediate sizes.

        `hidden_size` and `vocab_size` are those of the whole model.
        """
        if self.is_whole:
            return self.config
        layers = self.config.layers[slice(*self.layers)]
        return dataclasses.replace(
            self.config, layers=tuple(self._local_layer(layer) for layer in layers)
        )

    def _local_layer(self, layer: LayerConfig) -> LayerConfig:
        """Return a layer with the sizes of this rank."""
        attention, mlp, moe = layer.attention, layer.mlp, layer.moe
        own, size = self.of_layer(layer), self.size
        if attention is not None:
            heads, kv_heads = length(own.heads), length(own.kv_heads)
            attention = dataclasses.replace(attention, num_heads=heads, num_kv_heads=kv_heads)
        if mlp is not None:
            mlp = dataclasses.replace(mlp, intermediate_size=mlp.intermediate_size // size)
        if moe is not None:
            moe = dataclasses.replace(
                moe,
                expert_size=moe.expert_size // size,
                shared_size=moe.shared_size // size,
                # Every rank adds its part of the input to the sum.
                identity_scale=moe.identity_scale / size,
            )
        mixer = None if layer.mixer is None else local_mixer(layer.mixer, size)
        return dataclasses.replace(layer, attention=attention, mixer=mixer, mlp=mlp, moe=moe)

    def of_layer(self, layer: LayerConfig) -> Division:
        """Return what this rank has of the tensors of a layer."""
        return dataclasses.replace(self.division, layer=layer)

    def slice_of(self, canonical: str, layer: int | None) -> TensorSlice | None:
        """Return the slice of a tensor; None: this rank does not have it."""
        return self.slices(layer)[canonical]

    def slices(self, layer: int | None) -> Mapping[str, TensorSlice | None]:
        """Return the slice of every tensor of a layer, or outside the layers, by canonical name."""
        return self._outside if layer is None else self._in_layers[layer]

    @cached_property
    def _outside(self) -> Mapping[str, TensorSlice | None]:
        """The slice of every tensor outside the layers; None: this rank does not have it."""
        shapes, absent = canonical_shapes(self.config), self._tensors_of_other_stages()
        names = (*tensors_before_layers(self.config), *tensors_after_layers(self.config))
        return {
            name: None if name in absent else self.division.slice_of(name, shapes[name])
            for name in names
        }

    @cached_property
    def _in_layers(self) -> Sequence[Mapping[str, TensorSlice | None]]:
        """The slice of every tensor of each layer; None: this rank does not have it."""
        layers = self.config.layers
        slices: dict[LayerConfig, Mapping[str, TensorSlice | None]] = {}
        for i, layer in enumerate(layers):
            if layer in slices:
                continue
            shapes, division = layer_shapes(self.config, layer), self.of_layer(layer)
            names = layer_tensors(self.config, i)
            slices[layer] = {name: division.slice_of(name, shapes[name]) for name in names}
        return [slices[layer] for layer in layers]

    def indices(self, canonical: str) -> Sequence[int | None]:
        """Return the experts or heads of this rank for a tensor stored separately for each.

        [None] for any other tensor.
        """
        count = index_count(self.config, canonical)
        if count is None:
            return [None]
        heads = {"q_norm": self.heads, "k_norm": self.kv_heads}
        return range(*heads.get(canonical, (0, count)))

    def own_tensors(self) -> Iterator[tuple[TensorKey, TensorSlice]]:
        """Yield the key, as in `canonical_tensors`, and the slice of every tensor of this rank."""
        own: dict[str, set[int | None]] = {}
        first, end = self.layers
        for canonical, layer, index in canonical_tensors(self.config):
            tensor_slice = self.slice_of(canonical, layer)
            in_stage = layer is None or first <= layer < end
            if canonical not in own:
                own[canonical] = set(self.indices(canonical))
            if tensor_slice is not None and index in own[canonical] and in_stage:
                yield (canonical, layer, index), tensor_slice

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor of this rank by Hugging Face name, in file order."""
        shape_of = shape_by_place(self.config)
        return {
            tensor_name(self.config, *key): tensor_slice.shape(shape_of(*key[:2]))
            for key, tensor_slice in self.own_tensors()
        }

    def weights_bytes(self, nbytes: Mapping[str, int]) -> int:
        """Return this rank's bytes of tensors with `nbytes` in total, by Hugging Face name."""
        shape_of = shape_by_place(self.config)
        return sum(
            nbytes[tensor_name(self.config, *key)]
            * math.prod(tensor_slice.shape(shape_of(*key[:2])))
            // math.prod(shape_of(*key[:2]))
            for key, tensor_slice in self.own_tensors()
        )

    def _tensors_of_other_stages(self) -> set[str]:
        """Return the canonical names of tensors outside the layers that other stages have."""
        before = set(tensors_before_layers(self.config))
        after = set(tensors_after_layers(self.config))
        if self.config.head.tied:
            after.add("embed")  # serves as the head
        own = before if self.stage == 0 else set()
        if self.stage == self.num_stages - 1:
            own = own | after
        return (before | after) - own


def shard_of(
    config: ModelConfig, size: int, rank: int, stage: int = 0, num_stages: int = 1
) -> Shard:
    """Return the shard of `rank` of `size` in a stage; every stage has `size` ranks.

    Raises `UsageError` if the model cannot be divided so.
    """
    problem = _problem(config, size)
    if problem:
        known = ", ".join(map(str, tp_choices(config)))
        raise UsageError(problem, f"this model supports --tp {known}")
    if not 0 <= rank < size:
        raise UsageError(f"rank {rank} does not exist with --tp {size}")
    shard = Shard(config, size, rank, stage, num_stages)
    _ = shard.layers  # raises for more stages than layers
    return shard


def tp_choices(config: ModelConfig) -> tuple[int, ...]:
    """Return the numbers of ranks that this model can be divided into, in ascending order."""
    count = config.attention.num_heads
    if config.mixer is not None and not config.has_attention:
        count = min(divisible_units(config.mixer).values(), default=1)
    return tuple(n for n in range(1, count + 1) if count % n == 0 and _problem(config, n) is None)


def _problem(config: ModelConfig, size: int) -> str | None:
    """Return why the model cannot be divided into `size` ranks; None if it can."""
    vocab_size = config.vocab_size
    if size < 1:
        return f"--tp {size} is less than 1"
    if size == 1:
        return None
    if config.mixer is not None and (problem := mixer_problem(config.mixer, size)) is not None:
        return problem
    if any(layer.mlp is not None and layer.mlp.sparsity for layer in config.layers):
        return (
            f"tensor parallelism is not supported for {config.architecture}: "
            "which gates are 0 depends on those of all ranks"
        )
    problems = (_layer_problem(layer, size) for layer in dict.fromkeys(config.layers))
    if (problem := next(filter(None, problems), None)) is not None:
        return problem
    if (size - 1) * -(-vocab_size // size) >= vocab_size:
        return f"vocab_size {vocab_size} leaves nothing for the last rank of --tp {size}"
    try:
        shard = Shard(config, size)
        _ = shard._outside, shard._in_layers
    except UsageError as error:
        return error.message
    return None


def _layer_problem(layer: LayerConfig, size: int) -> str | None:
    if layer.attention is not None:
        heads, kv_heads = layer.attention.num_heads, layer.attention.num_kv_heads
        if heads % size:
            return f"num_attention_heads {heads} is not divisible by --tp {size}"
        if kv_heads % size and size % kv_heads:
            return (
                f"num_key_value_heads {kv_heads} is not divisible by --tp {size}, "
                f"nor --tp {size} by {kv_heads}"
            )
    sizes = {} if layer.mlp is None else {"intermediate_size": layer.mlp.intermediate_size}
    if layer.moe is not None:
        sizes |= {"expert_size": layer.moe.expert_size, "shared_expert_size": layer.moe.shared_size}
    for name, width in sizes.items():
        if width % size:
            return f"{name} {width} is not divisible by --tp {size}"
    return None
