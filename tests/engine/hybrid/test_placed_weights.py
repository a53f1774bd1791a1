"""Weights of a GPU of which some are in main memory, streamed as for a GPU."""

import json
from pathlib import Path

import pytest
import torch

from swiftchat.engine.cpu.native_weights import NativeWeight, NativeWeights
from swiftchat.engine.gpu.linear.plain import GpuPlainWeight, LinearKernels
from swiftchat.engine.hybrid.placed_weights import PlacedWeights
from swiftchat.engine.load.dummy import dummy_weights
from swiftchat.engine.load.loader import stream_weights
from swiftchat.engine.model.weights import DecoderWeights
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.tensors import is_of_routed_expert, tensor_name
from swiftchat.weights.model.directory import Model
from swiftchat.weights.model.dummy import DUMMY_CONFIGS, dummy_config
from swiftchat.weights.parallel.tensor_parallel import Shard
from tests.support.emulated.kernels import emulated_gpu
from tests.support.expert_models import EXPERT_MODELS
from tests.support.native.libraries import VARIANT_NAMES
from tests.support.native.ops import pool

CPU = torch.device("cpu")


def placed(config: ModelConfig, layers: tuple[int, ...]) -> PlacedWeights:
    keys = [key for key, _ in Shard(config).own_tensors()]
    names = {
        tensor_name(config, *key)
        for key in keys
        if key[1] in layers and is_of_routed_expert(key[0])
    }
    kernels = LinearKernels(emulated_gpu(), config.hidden_size)
    return PlacedWeights(kernels, NativeWeights(pool(VARIANT_NAMES[-1])), names)


def on_host(weights: DecoderWeights) -> list[int]:
    """Return the layers with native experts; all other weights must not be native."""
    found = []
    for i, layer in enumerate(weights.layers):
        assert isinstance(layer.qkv, GpuPlainWeight)
        if layer.experts is None:
            continue
        matrices = [w for each in layer.experts.each for w in (each.gate_up, each.down)]
        kinds = {isinstance(matrix, NativeWeight) for matrix in matrices}
        assert len(kinds) == 1
        found += [i] if kinds == {True} else []
        if layer.experts.shared is not None:
            assert not isinstance(layer.experts.shared.down, NativeWeight)
    return found


@pytest.mark.parametrize("name", EXPERT_MODELS)
def test_only_experts_of_these_layers_are_native(name: str, tmp_path: Path) -> None:
    EXPERT_MODELS[name](tmp_path)
    model, seen = Model.open(tmp_path), list[tuple[int, int]]()
    config, last = model.config, model.config.num_layers - 1
    weights = stream_weights(
        *(config, model.checkpoint(), torch.float32, CPU, lambda *done: seen.append(done)),
        factory=placed(config, (last,)),
    )
    assert on_host(weights) == [last]
    assert seen == sorted(seen) and seen[-1][0] == seen[-1][1]
    plain = stream_weights(config, model.checkpoint(), torch.float32, CPU, lambda *_: None)
    ours, theirs = weights.layers[last].experts, plain.layers[last].experts
    assert ours is not None and theirs is not None
    x = torch.randn(2, config.hidden_size, generator=torch.Generator().manual_seed(1))
    for own, other in zip(ours.each, theirs.each, strict=True):
        torch.testing.assert_close(own.gate_up.matmul(x), other.gate_up.matmul(x))
        biases = (own.gate_up_bias, other.gate_up_bias)
        assert biases[0] is biases[1] is None or torch.equal(*biases)


@pytest.mark.parametrize("scheme", ["", ":int4", ":fp8"])
def test_random_weights(scheme: str, tmp_path: Path) -> None:
    sizes = {
        "num_hidden_layers": 3,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "hidden_size": 256,
    }
    keys = {**DUMMY_CONFIGS["qwen3-30b-a3b"], **sizes, "moe_intermediate_size": 128}
    (tmp_path / "config.json").write_text(json.dumps(keys))
    config = dummy_config(str(tmp_path / "config.json"))
    factory = placed(config, (1, 2))
    weights = dummy_weights(
        config, torch.bfloat16, CPU, scheme=scheme.removeprefix(":") or None, factory=factory
    )
    layers = [layer.experts for layer in weights.layers]
    assert [isinstance(own.each[0].down, NativeWeight) for own in layers if own is not None] == [
        False,
        True,
        True,
    ]
    native = layers[1]
    assert native is not None and native.each[0].down.is_quantized == bool(scheme)
