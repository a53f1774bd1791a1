"""Tensors of a checkpoint that nothing reads are told."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from swiftchat.errors import BadModelFile
from swiftchat.weights.model.directory import Model
from swiftchat.weights.model.unread import unread_note
from tests.support import tiny
from tests.support.quantized_models import FORMATS, quantized_model


def add(folder: Path, *names: str, value: float = 1.0) -> None:
    path = folder / "model.safetensors"
    save_file({**load_file(path), **{name: torch.full((8,), value) for name in names}}, path)


@pytest.mark.parametrize(
    ("name", "is_told"),
    [
        ("model.layers.0.mlp.up_proj.bias", True),
        ("model.layers.1.self_attn.q_norm.weight", True),
        ("model.norm.bias", True),
        ("lm_head.bias", True),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", False),
        ("model.layers.0.self_attn.k_scale", False),
        ("model.layers.9.mlp.up_proj.weight", False),  # predicts further tokens
        ("mtp.layers.0.mlp.up_proj.weight", False),
        ("vision_tower.layers.0.norm.weight", False),
    ],
)
@pytest.mark.parametrize("is_quantized", [False, True])
def test_tensors_of_the_models_layers_are_told(
    tmp_path: Path, name: str, is_told: bool, is_quantized: bool
) -> None:
    folder = tmp_path / "m"
    if is_quantized:
        quantized_model(folder, *FORMATS["fp8-row"])
    else:
        tiny.make("llama", folder)
    add(folder, name)
    if is_quantized and is_told and name.endswith(".bias"):
        with pytest.raises(BadModelFile, match="is not zero, but the model has no such bias"):
            Model.open(folder).checkpoint()
        return
    unread = Model.open(folder).checkpoint().unread
    assert unread == ([name] if is_told else [])


def test_biases_of_zeros_in_quantized_models_are_not_told(tmp_path: Path) -> None:
    quantized_model(tmp_path / "m", *FORMATS["fp8-row"])
    add(tmp_path / "m", "lm_head.bias", value=0.0)
    assert not Model.open(tmp_path / "m").checkpoint().unread


@pytest.mark.parametrize(
    ("name", "unread"), [("modelopt-nvfp4", 14), ("compressed-nvfp4", 14), ("awq", 0)]
)
def test_scales_of_activations_that_are_not_quantized_are_counted(
    tmp_path: Path, name: str, unread: int
) -> None:
    quantized_model(tmp_path / "m", *FORMATS[name])
    assert Model.open(tmp_path / "m").checkpoint().unread_input_scales == unread


def test_the_note_reaches_the_user(tmp_path: Path) -> None:
    tiny.make("llama", tmp_path)
    add(tmp_path, "model.norm.bias", "lm_head.bias")
    note = tiny.engine(tmp_path).info.note
    assert "nothing reads" in note and "and 1 more" in note
    assert not unread_note([])
