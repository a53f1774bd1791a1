"""`convert` of damaged and hostile models: the file is named, and nothing is written."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from swiftchat.chat import cli
from swiftchat.errors import BadModelFile
from tests.support.tiny_llama import tiny_llama
from tests.support.zero_model import make_zero_model

Q = "model.layers.1.self_attn.q_proj.weight"


class Payload:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


def hostile_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "config.json").unlink()
    (folder / "params.json").write_text('{"dim": 48, "n_layers": 2, "n_heads": 6}')
    content = {"x": torch.zeros(2), "y": Payload(folder / "called")}
    torch.save(content, folder / "consolidated.00.pth", _use_new_zipfile_serialization=False)


def index_out_of_the_folder(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.with_name("elsewhere.safetensors"))
    index = {"weight_map": {"model.norm.weight": "../elsewhere.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def web_page_for_a_shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    tiny_llama().save_pretrained(folder, max_shard_size="60KB")
    sorted(folder.glob("*.safetensors"))[1].write_bytes(b"<!DOCTYPE html><html>Not found</html>")


def narrower_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors[Q] = tensors[Q][:24]
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.fault(1, 15, 30, 33)
@pytest.mark.parametrize(
    ("damage", "parts"),
    [
        (hostile_pickle, ("consolidated.00.pth", "pickle")),
        (index_out_of_the_folder, ("../elsewhere.safetensors", "is not a weight file")),
        (web_page_for_a_shard, ("model-00002-of-", "web page")),
        (narrower_tensor, (Q, "expected [48, 48]", "found [24, 48]")),
    ],
)
def test_nothing_is_written(
    tmp_path: Path, damage: Callable[[Path], None], parts: tuple[str, ...]
) -> None:
    folder = make_zero_model(tmp_path / "model")
    damage(folder)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    command = ["convert", str(folder), str(tmp_path / "out")]
    error = CliRunner().invoke(cli.swiftchat, command, standalone_mode=False).exception
    assert isinstance(error, BadModelFile) and error.exit_code == 7, error
    assert all(part in error.message for part in parts), error.message
    after = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    assert after == before and not (tmp_path / "out").exists()
