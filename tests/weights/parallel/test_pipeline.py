"""Layers and tensors of pipeline stages."""

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftchat.errors import UsageError
from swiftchat.weights.architectures.config import read_model_config
from swiftchat.weights.architectures.tensors import expected_tensors, tensor_name
from swiftchat.weights.model.directory import Model
from swiftchat.weights.model.dummy import DUMMY_CONFIGS
from swiftchat.weights.parallel.pipeline import partition, stage_layers
from swiftchat.weights.parallel.tensor_parallel import shard_of
from tests.support import tiny


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=8).flatmap(
        lambda costs: st.tuples(st.just(costs), st.integers(1, len(costs)))
    )
)
def test_no_other_partition_has_a_lower_maximum_cost(case: tuple[list[int], int]) -> None:
    costs, count = case
    ranges = partition(costs, count)
    assert len(ranges) == count
    assert [first for first, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
    assert ranges[-1][1] == len(costs) and all(first < end for first, end in ranges)
    inside = itertools.combinations(range(1, len(costs)), count - 1)
    every = [list(itertools.pairwise((0, *cuts, len(costs)))) for cuts in inside]
    assert max_cost(costs, ranges) == min(max_cost(costs, other) for other in every)


def max_cost(costs: list[int], ranges: list[tuple[int, int]]) -> int:
    return max(sum(costs[first:end]) for first, end in ranges)


@pytest.mark.parametrize(
    ("name", "count", "layers"),
    [
        ("llama-3.1-8b", 1, [32]),
        ("llama-3.1-8b", 2, [16, 16]),
        # Embedding and head are 2.4 layers each.
        ("llama-3.1-8b", 4, [7, 9, 9, 7]),
        ("llama-3.1-70b", 8, [9, 11, 11, 11, 11, 11, 11, 5]),
    ],
)
def test_stage_layers_of_published_models(name: str, count: int, layers: list[int]) -> None:
    spans = stage_layers(read_model_config(DUMMY_CONFIGS[name]), count)
    assert [end - first for first, end in spans] == layers


def test_invalid_number_of_stages_raises_an_error() -> None:
    config = read_model_config(DUMMY_CONFIGS["llama-3.1-8b"])
    assert len(stage_layers(config, 32)) == 32
    with pytest.raises(UsageError, match="--pp 33 is more than this model's 32 layers"):
        stage_layers(config, 33)
    with pytest.raises(UsageError, match="--pp 0 is less than 1"):
        stage_layers(config, 0)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", ["llama-biases", "gemma2", "gpt2", "opt-350m", "qwen3-moe-mixed"])
def test_stages_together_have_every_tensor(name: str, size: int, tmp_path: Path) -> None:
    tiny.make(name, tmp_path)
    config = Model.open(tmp_path).config
    for rank in range(size):
        whole = shard_of(config, size, rank)
        stages = [shard_of(config, size, rank, stage, 3) for stage in range(3)]
        held = Counter(name for shard in stages for name in shard.shapes())
        assert held.keys() == whole.shapes().keys()
        twice = {tensor_name(config, "embed")} if config.head.tied else set()
        assert {name for name, count in held.items() if count > 1} == twice
        assert all(
            whole.shapes()[name] == s for shard in stages for name, s in shard.shapes().items()
        )
        nbytes = dict.fromkeys(expected_tensors(config), 1000)
        assert max(shard.weights_bytes(nbytes) for shard in stages) < whole.weights_bytes(nbytes)


def test_a_stage_has_its_layers() -> None:
    config = read_model_config(DUMMY_CONFIGS["llama-3.1-8b"])
    layers = [replace(layer, mixer_out_scale=float(i)) for i, layer in enumerate(config.layers)]
    config = replace(config, layers=tuple(layers))
    first, last = (shard_of(config, 1, 0, stage, 2).local_config for stage in range(2))
    assert [layer.mixer_out_scale for layer in first.layers] == list(range(16))
    assert [layer.mixer_out_scale for layer in last.layers] == list(range(16, 32))
    assert [layer.file_layer for layer in last.layers] == list(range(16, 32))
