"""Division of a model's layers into pipeline stages.

Each stage has consecutive layers (GPipe: Huang et al., 2018, arXiv:1811.06965). The cost of a
layer is its number of elements, which is proportional to the bytes that a decode step reads and a
GPU holds. The embedding counts with the first layer, the last norm and the head with the last.
"""

import math
from collections.abc import Sequence

from swiftchat.errors import UsageError
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.tensors import (
    canonical_tensors,
    shape_by_place,
    tensors_before_layers,
)


def stage_layers(config: ModelConfig, num_stages: int) -> list[tuple[int, int]]:
    """Return the layers (first, end) of every stage; `UsageError` for more stages than layers."""
    if num_stages < 1:
        raise UsageError(f"--pp {num_stages} is less than 1")
    if num_stages > config.num_layers:
        raise UsageError(
            f"--pp {num_stages} is more than this model's {config.num_layers} layers",
            f"use --pp {config.num_layers} or less",
        )
    across = any(each.kv_source is not None for each in config.attentions)
    across = across or config.embeddings.per_layer is not None
    across = across or any(layer.is_shortcut for layer in config.layers)
    if (config.mixer is not None or across) and num_stages > 1:
        raise UsageError(
            f"pipeline parallelism is not supported for {config.architecture}", "leave out --pp"
        )
    return partition(_layer_costs(config), num_stages)


def partition(costs: Sequence[int], num_stages: int) -> list[tuple[int, int]]:
    """Divide a sequence into contiguous non-empty ranges with the least maximum cost.

    There must be at least as many costs as stages. Of equally good partitions the result has the
    longest first ranges.
    """
    low, high = max(costs), sum(costs)
    while low < high:
        middle = (low + high) // 2
        if len(_fill_ranges(costs, middle)) <= num_stages:
            high = middle
        else:
            low = middle + 1
    return _fill_ranges(costs, low, at_least=num_stages)


def _fill_ranges(costs: Sequence[int], max_cost: int, at_least: int = 1) -> list[tuple[int, int]]:
    """Return ranges of cost up to `max_cost`, each as long as possible.

    To reach the number `at_least`, the last ranges may be shorter, down to one element.
    """
    ranges: list[tuple[int, int]] = []
    first = total = 0
    for i, cost in enumerate(costs):
        needed_after = at_least - len(ranges) - 1
        if i > first and (total + cost > max_cost or len(costs) - i <= needed_after):
            ranges.append((first, i))
            first, total = i, 0
        total += cost
    return [*ranges, (first, len(costs))]


def _layer_costs(config: ModelConfig) -> list[int]:
    """Return the number of elements of each layer, including the tensors outside the layers."""
    shape_of, before = shape_by_place(config), tensors_before_layers(config)
    costs = [0] * config.num_layers
    for name, layer, _ in canonical_tensors(config):
        outside = 0 if name in before else -1
        costs[outside if layer is None else layer] += math.prod(shape_of(name, layer))
    if config.head.tied:  # the last stage needs the embedding as its head
        costs[-1] += math.prod(shape_of("embed", None))
    return costs
