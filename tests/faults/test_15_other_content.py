"""Fault 15: a shard is truncated, its tensors overlap, or it is a web page or a git-lfs pointer.

Required: an error that names the file, exit code 7.

Provoked by: a model of several shards of which one is replaced, given to `convert`.
"""

import json
import struct
from pathlib import Path

import pytest

from tests.support.program import assert_error
from tests.support.serve_processes import swiftchat
from tests.support.tiny_llama import entry_names, tiny_llama


def overlapping(content: bytes) -> bytes:
    """Move the second tensor of a safetensors file to the place of the first."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    first, second = [entry for name, entry in header.items() if name != "__metadata__"][:2]
    begin, end = second["data_offsets"]
    start = first["data_offsets"][0]
    second["data_offsets"] = [start, start + end - begin]
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


CONTENTS = {
    "truncated": lambda content: content[:-100],
    "overlap": overlapping,
    "web page": lambda content: b"<!DOCTYPE html><html>Not found</html>",
    "git-lfs pointer": lambda content: b"version https://git-lfs.example/spec/v1\noid sha256:0\n",
}


@pytest.mark.parametrize("complaint", CONTENTS)
def test_a_shard_with_other_content_is_named(tmp_path: Path, complaint: str) -> None:
    folder = tmp_path / "model"
    tiny_llama().save_pretrained(folder, max_shard_size="60KB")
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.write_bytes(CONTENTS[complaint](shard.read_bytes()))
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    done = swiftchat("convert", str(folder), str(tmp_path / "out"))
    assert_error(done, 7, str(shard), complaint)
    assert not (tmp_path / "out").exists()
    assert {name: (folder / name).read_bytes() for name in entry_names(folder)} == before
