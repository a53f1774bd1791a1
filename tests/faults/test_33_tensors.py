"""Fault 33: a tensor of a model is missing, occurs twice, or has another shape.

Required: exit code 7 with the name of the tensor, what was expected and what was found.

Provoked by: a model of two shards whose index and files are edited.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.program import assert_error
from tests.support.serve_processes import swiftchat
from tests.support.zero_model import make_zero_model

INDEX = "model.safetensors.index.json"
NORM, Q = "model.norm.weight", "model.layers.1.self_attn.q_proj.weight"
Shards = dict[str, dict[str, torch.Tensor]]


def drop(shards: Shards) -> None:
    del shards["one.safetensors"][NORM]


def reshape(shards: Shards) -> None:
    shards["one.safetensors"][Q] = shards["one.safetensors"][Q][:24]


def repeat(shards: Shards) -> None:
    shards["two.safetensors"][NORM] = shards["one.safetensors"][NORM]


def sharded_model(folder: Path, edit: Callable[[Shards], None]) -> Path:
    """Make a model of two shards; the index is that of the unedited files."""
    make_zero_model(folder)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    first = {name: tensors.pop(name) for name in (NORM, Q)}
    shards = {"one.safetensors": first, "two.safetensors": tensors}
    weight_map = {name: file for file, shard in shards.items() for name in shard}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    edit(shards)
    for file, shard in shards.items():
        save_file(shard, folder / file)
    return folder


@pytest.mark.parametrize(
    ("edit", "parts"),
    [
        (drop, (NORM, "expected in one.safetensors", "found in no shard")),
        (repeat, (NORM, "in both one.safetensors and two.safetensors")),
        (reshape, (Q, "expected [48, 48]", "found [24, 48]")),
    ],
)
def test_the_tensor_is_named(
    tmp_path: Path, edit: Callable[[Shards], None], parts: tuple[str, ...]
) -> None:
    folder = sharded_model(tmp_path / "model", edit)
    if edit is reshape:  # by the engine, too
        assert_error(swiftchat("-m", str(folder), "-p", "x", "-n", "1"), 7, *parts)
    assert_error(swiftchat("convert", str(folder), str(tmp_path / "out")), 7, *parts)
    assert not (tmp_path / "out").exists()
