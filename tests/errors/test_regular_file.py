"""Files of models are read only if they are regular: no reader waits for a FIFO."""

import os
import socket
from pathlib import Path

import pytest

from swiftchat.errors import BadModelFile
from swiftchat.errors.regular_file import open_regular
from swiftchat.tokenizer import Tokenizer
from swiftchat.weights.files.reading import read_small_file
from swiftchat.weights.formats.gguf import GgufFile
from swiftchat.weights.formats.safetensors import read_header
from swiftchat.weights.formats.sorted_table import read_table
from swiftchat.weights.formats.torch_container import read_container
from swiftchat.weights.model.directory import Model
from tests.support import fake_engine


def make_fifo(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


def make_socket(path: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(path))
    return path


def make_device(path: Path) -> Path:
    path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize("make", [make_fifo, make_socket, make_device])
def test_other_than_regular_files_are_refused(make: object, tmp_path: Path) -> None:
    path = make(tmp_path / "x y")  # type: ignore[operator]
    with pytest.raises(BadModelFile, match="is not a regular file") as caught:
        open_regular(path)
    assert caught.value.hint == f"ls -lL '{path}' shows what it is"


def test_files_and_links_to_them_are_read_and_folders_are_not(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        with open_regular(tmp_path / name) as file:
            assert file.read() == b"text"
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "missing")


@pytest.mark.parametrize(
    "read",
    [
        read_small_file,
        read_header,
        read_table,
        GgufFile.open,
        lambda path: read_container(path, lambda name: False, {}),
    ],
)
def test_no_reader_waits_for_a_fifo(read: object, tmp_path: Path) -> None:
    with pytest.raises(BadModelFile, match="is not a regular file"):
        read(make_fifo(tmp_path / "x"))  # type: ignore[operator]


def test_an_extra_template_that_is_a_fifo_is_refused(tmp_path: Path) -> None:
    folder = fake_engine.make_folder(tmp_path / "model")
    make_fifo(folder / "additional_chat_templates" / "tools.jinja")
    with pytest.raises(BadModelFile, match=r"tools\.jinja is not a regular file"):
        Tokenizer.load(folder)


@pytest.mark.parametrize(
    "name",
    ["README.md", "generation_config.json", "tokenizer_config.json", "chat_template.jinja"],
)
def test_an_optional_file_that_is_a_fifo_counts_as_missing(name: str, tmp_path: Path) -> None:
    folder = fake_engine.make_folder(tmp_path / "model")
    make_fifo(folder / name)
    assert Model.open(folder).license is None and Tokenizer.load(folder).encode("a")
