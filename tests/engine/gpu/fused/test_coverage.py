"""What the fused kernels of a decode step say that they compute: an allow-list."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from swiftchat.engine.gpu.fused import coverage
from swiftchat.engine.gpu.fused.coverage import fused_kernels_cover, fused_weights_fit
from swiftchat.engine.model.weights import DecoderWeights, LayerWeights
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.parts.layers import LayerSizes
from swiftchat.weights.model.directory import Model
from swiftchat.weights.parallel.tensor_parallel import Shard
from tests.support import tiny

SIZES = LayerSizes(head_dim=16, num_kv_heads=1, intermediate_size=64, num_heads=3)
LISTED = coverage._COMPUTED | coverage._COMPUTED_IF.keys()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    folder = tmp_path_factory.mktemp("llama")
    tiny.make("llama", folder)
    return Model.open(folder).config


@pytest.fixture(scope="module")
def experts(llama: ModelConfig) -> ModelConfig:
    """A model whose MLPs are experts, and no other."""
    return replace(llama, num_experts=4, experts_per_token=2, expert_size=32)


@pytest.mark.parametrize("name", sorted({field.name for field in fields(ModelConfig)} - LISTED))
def test_a_field_that_is_not_listed_refuses_the_model(name: str, llama: ModelConfig) -> None:
    assert fused_kernels_cover(llama)
    assert not fused_kernels_cover(replace(llama, **{name: "another value"}))


def test_a_new_field_refuses_the_model_until_it_is_listed(llama: ModelConfig) -> None:
    @dataclass(frozen=True)
    class Extended(ModelConfig):
        new_scale: float = 1.0

    values = {field.name: getattr(llama, field.name) for field in fields(llama)}
    assert fused_kernels_cover(Extended(**values))
    assert not fused_kernels_cover(Extended(**values, new_scale=2.0))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_computes_what_the_whole_model_does(llama: ModelConfig, rank: int) -> None:
    """The config of a part differs from that of the model."""
    assert fused_kernels_cover(Shard(llama, 2, rank).local_config)


def test_the_lists_name_fields() -> None:
    names = {field.name for field in fields(ModelConfig)}
    assert names >= LISTED
    assert {field.name for field in fields(LayerSizes)} > coverage._VARYING
    assert {field.name for field in fields(LayerWeights)} > coverage._LAYER_WEIGHTS
    assert {field.name for field in fields(DecoderWeights)} > coverage._WEIGHTS


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_out_scale": 0.5},
        {"mixer_out_scale": 0.5},
        {"mlp_out_scale": 0.5},
        {"gate_scale": 0.5},
        {"gate_limit": 7.0},
        {"interleaved_gate": True},
        {"norm_bias": True},
        {"final_norm": False},
        {"layer_sizes": (replace(SIZES, num_heads=12),)},
        {"activation": "gelu_sigmoid"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_operations_without_fused_kernels(llama: ModelConfig, changes: dict[str, Any]) -> None:
    """Each is computed by `Decoder` alone."""
    assert not fused_kernels_cover(replace(llama, **changes))


def test_layers_may_have_other_sizes(llama: ModelConfig) -> None:
    sizes = replace(SIZES, num_heads=llama.num_heads)
    assert fused_kernels_cover(replace(llama, layer_sizes=(sizes, replace(sizes, head_dim=32))))


@pytest.mark.parametrize("changes", [{"gate_limit": 7.0}, {"interleaved_gate": True}])
def test_gates_of_experts_are_not_those_of_mlps(
    experts: ModelConfig, changes: dict[str, Any]
) -> None:
    assert fused_kernels_cover(replace(experts, **changes))
    for others in ({"dense_layers": frozenset({0})}, {"shared_expert_size": 32}):
        assert fused_kernels_cover(replace(experts, **others))
        assert not fused_kernels_cover(replace(experts, **changes, **others))


def test_weights_that_the_fused_kernels_do_not_read(tmp_path: Path) -> None:
    tiny.make("llama", tmp_path)
    weights, extra = tiny.Bench(tmp_path).decoder.weights, torch.ones(1)
    assert fused_weights_fit(weights)
    for name in ("positions", "embed_norm", "final_norm_bias", "lm_head_bias"):
        assert not fused_weights_fit(replace(weights, **{name: extra}))
