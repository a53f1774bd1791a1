"""Recorded operations, computed by torch, against the operations of `TorchOps`."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from swiftchat.engine.cpu.attention_ops import AttentionOps
from swiftchat.engine.cpu.native import (
    EmbedOp,
    Epilogue,
    LayerCache,
    LinearOp,
    RotaryOp,
    RowSet,
)
from swiftchat.engine.cpu.recorded_activations import Activations, CannotRecordError
from swiftchat.engine.cpu.recording import Recording
from swiftchat.engine.cpu.references import References
from swiftchat.engine.linear.w8a8 import W8A8Weight
from swiftchat.engine.model.layer import Layer
from swiftchat.weights.architectures.parts.attention import Scores
from swiftchat.weights.model.directory import Model
from swiftchat.weights.quantization.scheme import ActivationQuantization
from tests.support import tiny
from tests.support.native import recorded_ops

# Each has an operation, or an order of operations, that those before it do not have.
FAMILIES = [
    *("llama-biases", "llama-tied", "qwen3", "smollm3", "mistral-window", "phi3-long-context"),
    *("olmo2", "stablelm-parallel", "stablelm-2-12b", "gemma3", "gpt2", "gpt-neox", "opt"),
    *("opt-350m", "bloom", "falcon-rw", "falcon-40b", "chatglm-6b", "mixtral"),
    *("qwen3-moe-normalized", "qwen2-moe"),
]


@pytest.fixture(params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    tiny.make(request.param, tmp_path)
    return tmp_path


def test_recorded_operations_equal_those_of_torch(folder: Path) -> None:
    """Both are fp32 and differ in the order of sums and in the formula of RMSNorm."""
    recorded, expected = recorded_ops.logits_of_both(folder)
    assert (recorded - expected).abs().max() <= 1e-5 * expected.abs().max()


def made(name: str, folder: Path) -> Recording:
    tiny.make(name, folder)
    return recorded_ops.recorded(tiny.Bench(folder)).recording


def test_operations_of_llama(tmp_path: Path) -> None:
    recording = made("llama", tmp_path)
    names = [type(op).__name__.removesuffix("Op") for op in recording.ops]
    branches = ["Norm", "Linear", "Rotary", "Attention", "Linear", "AddScaled"]
    branches += ["Norm", "Linear", "ActAndMul", "Linear", "AddScaled"]
    assert names == ["Embed", *3 * branches, "Norm", "Gather", "Linear"]
    assert {op.header.row_set for op in recording.ops[:-2]} == {RowSet.TOKENS}
    assert {op.header.row_set for op in recording.ops[-2:]} == {RowSet.LOGITS}
    assert recording.buffers[recording.output] == (RowSet.LOGITS, tiny.VOCAB_SIZE)
    linears = [op for op in recording.ops if isinstance(op, LinearOp)]
    assert all(op.exact and op.epilogue == Epilogue.STORE for op in linears)


def test_scales_and_positions_are_part_of_the_embedding(tmp_path: Path) -> None:
    gemma = made("gemma", tmp_path / "gemma").ops[0]
    assert isinstance(gemma, EmbedOp) and gemma.scale == pytest.approx(48**0.5)
    gpt2 = made("gpt2", tmp_path / "gpt2").ops[0]
    assert isinstance(gpt2, EmbedOp) and gpt2.positions.rows == 256


def test_angles_and_windows_of_layers(tmp_path: Path) -> None:
    smollm3 = made("smollm3", tmp_path / "smollm3").ops
    rotated = [bool(op.cos_sin) for op in smollm3 if isinstance(op, RotaryOp)]
    assert rotated == [True, True, True, False, True]
    gemma3 = made("gemma3", tmp_path / "gemma3").ops
    tables = Counter(op.cos_sin for op in gemma3 if isinstance(op, RotaryOp))
    assert sorted(tables.values()) == [1, 2]


def test_the_scale_of_scores_is_that_of_the_layer(tmp_path: Path) -> None:
    """Layers may have scales of their own."""
    tiny.make("llama", tmp_path)
    config = Model.open(tmp_path).config
    scales = [Scores(head_dim**-0.5) for head_dim in (16, 64, 16)]
    layers = [
        replace(layer, attention=replace(config.attention, scores=scores))
        for layer, scores in zip(config.layers, scales, strict=True)
    ]
    config = replace(config, layers=tuple(layers))
    ops = AttentionOps(config, References(), 64)
    scales = [ops.attention(layer, LayerCache(), None).scale for layer in range(3)]
    assert scales == [0.25, 0.125, 0.25]


def test_a_weight_without_kernels_cannot_be_recorded(tmp_path: Path) -> None:
    tiny.make("llama", tmp_path)
    bench = tiny.Bench(tmp_path)
    layer = bench.decoder.weights.layers[1]
    quantized = W8A8Weight(layer.down, ActivationQuantization("int8"))
    object.__setattr__(layer, "down", quantized)
    with pytest.raises(CannotRecordError, match="W8A8Weight"):
        recorded_ops.recorded(bench)


def test_operations_of_torch_cannot_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.make("llama", tmp_path)
    bench = tiny.Bench(tmp_path)
    x = Activations.of(0, RowSet.TOKENS, 48)
    for operation in (lambda: x + x, lambda: x.mul_(2), lambda: torch.ones(3) * x, lambda: x.shape):
        with pytest.raises(CannotRecordError, match="computes torch's"):
            operation()
    mlp = Layer._mlp
    monkeypatch.setattr(Layer, "_mlp", lambda *args: mlp(*args) * 0.5)
    with pytest.raises(CannotRecordError, match="torch's mul"):
        recorded_ops.recorded(bench)
    monkeypatch.setattr(Layer, "_mlp", lambda *args: torch.ones(1, 48))
    with pytest.raises(CannotRecordError, match="none has returned"):
        recorded_ops.recorded(bench)


def test_a_quantized_cache(tmp_path: Path) -> None:
    tiny.make("llama", tmp_path)
    for scheme in ("int8", "fp8", "int5"):
        bench = tiny.Bench(tmp_path, kv_dtype=scheme)
        ops = recorded_ops.recorded(bench, kv_dtype=scheme).recording.ops
        caches = [op.cache for op in ops if isinstance(op, RotaryOp)]
        assert len({cache.values for cache in caches}) == 3
        assert all(cache.scales for cache in caches)
        assert all(bool(cache.key_bits) == (scheme == "int5") for cache in caches)
