"""Fault 1: a `.bin` or `.pth` file calls functions when it is unpickled.

Required: nothing is called, no other reader is tried, exit code 7.

Provoked by: files of `torch.save` whose `__reduce__` creates a file, given to `convert` and to a
chat.
"""

import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.fake_engine import make_folder
from tests.support.program import assert_error
from tests.support.serve_processes import swiftchat
from tests.support.tiny_llama import entry_names


class Payload:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


def run(command: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    if command == "convert":
        return swiftchat("convert", str(folder), str(folder.parent / "out"))
    return swiftchat("-m", str(folder), "-p", "Hello")


@pytest.mark.parametrize(
    ("command", "name", "is_zip"),
    [
        ("convert", "pytorch_model.bin", True),
        ("convert", "consolidated.00.pth", False),
        ("chat", "pytorch_model.bin", False),
    ],
)
def test_code_in_a_pickle_is_not_called(
    tmp_path: Path, command: str, name: str, is_zip: bool
) -> None:
    folder = make_folder(tmp_path / "model")
    mark = tmp_path / "called"
    content = {"model.embed_tokens.weight": torch.zeros(2), "x": Payload(mark)}
    torch.save(content, folder / name, _use_new_zipfile_serialization=is_zip)
    assert zipfile.is_zipfile(folder / name) == is_zip
    if name.endswith(".pth"):
        (folder / "config.json").unlink()
        (folder / "params.json").write_text('{"dim": 48, "n_layers": 2, "n_heads": 6}')
    before = entry_names(folder)
    assert_error(run(command, folder), 7, str(folder / name), "pickle")
    assert not mark.exists()
    assert entry_names(folder) == before and not (tmp_path / "out").exists()
