"""Which layers each of several stages computes, one after the other (pipeline parallelism).

As in Huang et al., 2018 (arXiv:1811.06965): consecutive layers on each stage. What they cost is
estimated by their bytes, which is what a decode step has to read and a GPU to hold; the embedding
counts with the first layer, and the last norm and the head with the last one.
"""

import math
from collections.abc import Sequence

from swiftchat.errors import UsageError
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.tensors import (
    canonical_shapes,
    canonical_tensors,
    tensors_before_layers,
)

__all__ = ["split", "stage_layers"]


def stage_layers(config: ModelConfig, num_stages: int) -> list[tuple[int, int]]:
    """The layers (first, end) of every stage; `UsageError` for more stages than layers."""
    if num_stages < 1:
        raise UsageError(f"--pp {num_stages} is less than 1")
    if num_stages > config.num_layers:
        raise UsageError(
            f"--pp {num_stages} is more than this model's {config.num_layers} layers",
            f"use --pp {config.num_layers} or less",
        )
    return split(_costs(config), num_stages)


def split(costs: Sequence[int], num_stages: int) -> list[tuple[int, int]]:
    """Divide things in a row into stretches, of which the costliest is as cheap as can be.

    None is empty; there are at least as many things as stretches. Of equally good divisions it is
    the one with the most in the first stretches.
    """
    low, high = max(costs), sum(costs)
    while low < high:
        middle = (low + high) // 2
        if len(_filled(costs, middle)) <= num_stages:
            high = middle
        else:
            low = middle + 1
    return _filled(costs, low, at_least=num_stages)


def _filled(costs: Sequence[int], most: int, at_least: int = 1) -> list[tuple[int, int]]:
    """Stretches that cost up to `most`, each as long as it can be: so there are the fewest.

    So many that at least `at_least` are made: later ones are left one thing each.
    """
    stretches: list[tuple[int, int]] = []
    first = total = 0
    for i, cost in enumerate(costs):
        wanted_after = at_least - len(stretches) - 1
        if i > first and (total + cost > most or len(costs) - i <= wanted_after):
            stretches.append((first, i))
            first, total = i, 0
        total += cost
    return [*stretches, (first, len(costs))]


def _costs(config: ModelConfig) -> list[int]:
    """The numbers in each layer's tensors, with those before and after the layers."""
    shapes, first = canonical_shapes(config), tensors_before_layers(config)
    costs = [0] * config.num_layers
    for name, layer, _ in canonical_tensors(config):
        outside = 0 if name in first else -1
        costs[outside if layer is None else layer] += math.prod(shapes[name])
    if config.tied_embeddings:  # the head is the embedding once more
        costs[-1] += math.prod(shapes["embed"])
    return costs
