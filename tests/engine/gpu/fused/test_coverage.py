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
from swiftchat.weights.architectures.parts.attention import Attention, Scores, Values
from swiftchat.weights.architectures.parts.embeddings import Embeddings, Head
from swiftchat.weights.architectures.parts.layers import LayerConfig, Norm
from swiftchat.weights.architectures.parts.mlp import Activation, Mlp, Moe
from swiftchat.weights.architectures.parts.router import RouterConfig
from swiftchat.weights.model.directory import Model
from swiftchat.weights.parallel.tensor_parallel import Shard
from tests.support import tiny
from tests.support.changed_configs import changed

# The parts that models have, by the names that `changed` knows.
PARTS: dict[str, type] = {
    "norm": Norm,
    "embeddings": Embeddings,
    "head": Head,
    "layer": LayerConfig,
    "attention": Attention,
    "scores": Scores,
    "mlp": Mlp,
    "activation": Activation,
}
REFUSED = [
    (name, field.name)
    for name, part in PARTS.items()
    for field in fields(part)
    if field.name not in coverage._COMPUTED[part]
    and (part, field.name) not in coverage._COMPUTED_IF
]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    folder = tmp_path_factory.mktemp("llama")
    tiny.make("llama", folder)
    return Model.open(folder).config


@pytest.fixture(scope="module")
def experts(llama: ModelConfig) -> ModelConfig:
    """A model whose MLPs are experts, and no other."""
    moe = Moe(4, 2, 32, llama.activation, RouterConfig())
    return changed(llama, layer={"mlp": None, "moe": moe})


@pytest.mark.parametrize(("part", "name"), REFUSED)
def test_a_field_that_is_not_listed_refuses_the_model(
    part: str, name: str, llama: ModelConfig
) -> None:
    assert fused_kernels_cover(llama)
    assert not fused_kernels_cover(changed(llama, **{part: {name: "another value"}}))


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
    for part, names in coverage._COMPUTED.items():
        assert {field.name for field in fields(part)} >= names
    for part, name in coverage._COMPUTED_IF:
        assert name in {field.name for field in fields(part)}
    assert {field.name for field in fields(LayerWeights)} > coverage._LAYER_WEIGHTS
    assert {field.name for field in fields(DecoderWeights)} > coverage._WEIGHTS


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("attention", "out_scale", 0.5),
        ("layer", "mixer_out_scale", 0.5),
        ("mlp", "out_scale", 0.5),
        ("activation", "scale", 0.5),
        ("activation", "limit", 7.0),
        ("activation", "interleaved", True),
        ("norm", "has_bias", True),
        ("head", "has_norm", False),
        ("attention", "values", Values(4)),
        ("layer", "mlp", None),
        ("activation", "kind", "gelu_sigmoid"),
    ],
)
def test_operations_without_fused_kernels(
    llama: ModelConfig, part: str, field: str, value: Any
) -> None:
    """Each is computed by `Decoder` alone."""
    assert not fused_kernels_cover(changed(llama, **{part: {field: value}}))


def test_layers_may_have_other_sizes(llama: ModelConfig) -> None:
    first, *others = llama.layers
    wide = replace(llama.attention, head_dim=32, num_kv_heads=1, values=Values(32))
    layers = (replace(first, attention=wide), *others)
    assert fused_kernels_cover(replace(llama, layers=layers))
    layers = (replace(first, attention=replace(wide, num_heads=12)), *others)
    assert not fused_kernels_cover(replace(llama, layers=layers))


@pytest.mark.parametrize("change", [{"limit": 7.0}, {"interleaved": True}])
def test_gates_of_experts_are_not_those_of_mlps(
    llama: ModelConfig, experts: ModelConfig, change: dict[str, Any]
) -> None:
    assert fused_kernels_cover(changed(experts, activation=change))
    dense = replace(experts, layers=(llama.layers[0], *experts.layers[1:]))
    for others in (dense, changed(experts, moe={"shared_size": 32})):
        assert fused_kernels_cover(others)
        assert not fused_kernels_cover(changed(others, activation=change))


def test_weights_that_the_fused_kernels_do_not_read(tmp_path: Path) -> None:
    tiny.make("llama", tmp_path)
    weights, extra = tiny.Bench(tmp_path).decoder.weights, torch.ones(1)
    assert fused_weights_fit(weights)
    for name in ("positions", "embed_norm", "final_norm_bias", "lm_head_bias"):
        assert not fused_weights_fit(replace(weights, **{name: extra}))
