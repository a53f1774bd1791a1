"""Blocks that several layers share (Zamba2): once in memory, and what a config may not say."""

import json
from pathlib import Path

import pytest
import torch

from swiftchat.engine.load.dummy import dummy_weights
from swiftchat.engine.load.loader import load_weights
from swiftchat.engine.model.weights import DecoderWeights, resident_bytes
from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.model.directory import Model
from swiftchat.weights.quantization.quantize import QuantizationSpec
from tests.support import reference

CPU = torch.device("cpu")


def assert_shared(weights: DecoderWeights) -> None:
    """Layers 1, 3 and 5 have one block, 2 and 4 the other."""
    for name in ("qkv", "o", "gate_up", "down"):
        matrices = [getattr(layer, name) for layer in weights.layers]
        assert matrices[1] is matrices[3] is matrices[5] and matrices[2] is matrices[4]
        assert matrices[1] is not matrices[2]
    changes = [each for layer in weights.layers if layer.block for each in layer.block.qkv_changes]
    assert len(changes) == 15 and len({id(change) for change in changes}) == 15


@pytest.mark.parametrize("scheme", [None, "int8"])
def test_a_block_is_in_memory_once(scheme: str | None, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    reference.copy_reference("zamba2", folder)
    if scheme is not None:
        convert(folder, tmp_path / scheme, quantization=QuantizationSpec(scheme))
        folder = tmp_path / scheme
    model = Model.open(folder)
    weights = load_weights(
        model.config, model.checkpoint(), torch.float32, CPU, lambda done, total: None
    )
    assert_shared(weights)
    assert_shared(dummy_weights(model.config, torch.float32, CPU))
    if scheme is None:
        file_bytes = sum(tensor.nbytes for tensor in model.checkpoint().tensors.values())
        assert resident_bytes(weights) == file_bytes


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("layers_block_type", ["hybrid"]),
        ("layers_block_type", ["mamba"] * 6),
        ("mamba_headdim", 7),
        ("attention_head_dim", 8),
        ("attention_hidden_size", 48),
        ("n_mamba_heads", 7),
    ],
)
def test_an_error_names_the_key(key: str, value: object, tmp_path: Path) -> None:
    reference.copy_reference("zamba2", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    with pytest.raises(BadModelFile, match=key):
        ModelConfig.from_hf({**config, key: value})
