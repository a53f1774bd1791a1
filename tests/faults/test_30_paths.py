"""Fault 30: the names of a repository or of a shard index lead out of the model's folder.

Required: exit code 7 with the name, nothing outside the folder is read or written.

Provoked by: a listing of the hub with `../`, an absolute path, a backslash and a control character,
an index file that names shards elsewhere, and a link in a model folder to a file elsewhere.
"""

import json
from pathlib import Path

import pytest

from tests.support.fake_hub import FakeHub
from tests.support.program import assert_error
from tests.support.serve_processes import swiftchat
from tests.support.zero_model import make_zero_model

INDEX = "model.safetensors.index.json"


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["../evil.json", "/tmp/evil.json", "a\\..\\b.json", "x\x1b[2J"])
def test_a_listing_cannot_name_other_files(hub: FakeHub, tmp_path: Path, name: str) -> None:
    hub.extra_siblings = [{"rfilename": name, "size": 1, "blobId": "0" * 40}]
    before = files_of(tmp_path)
    done = swiftchat("download", hub.repo, "-y")
    assert_error(done, 7, "outside the repository")
    assert b"\x1b" not in done.stderr
    assert files_of(tmp_path) == before
    assert not [request for request in hub.log if "/api/" not in request.path]


@pytest.mark.parametrize("shard", ["../elsewhere.safetensors", "{folder}/elsewhere.safetensors"])
def test_an_index_cannot_name_other_files(tmp_path: Path, shard: str) -> None:
    folder = make_zero_model(tmp_path / "model")
    elsewhere = (folder / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    name = shard.format(folder=tmp_path)
    index = {"weight_map": {"model.norm.weight": name}}
    (folder / INDEX).write_text(json.dumps(index))
    before = files_of(folder)
    args = ("-m", str(folder), "-p", "x") if ".." in shard else ("convert", str(folder), "out")
    assert_error(swiftchat(*args), 7, name, "is not a weight file")
    assert files_of(folder) == before and elsewhere.exists() and not Path("out").exists()


def test_a_link_to_another_file_is_refused(tmp_path: Path) -> None:
    folder = make_zero_model(tmp_path / "model")
    weights = folder / "model.safetensors"
    weights.symlink_to(weights.rename(tmp_path / "elsewhere.safetensors"))
    done = swiftchat("convert", str(folder), str(tmp_path / "out"))
    assert_error(done, 7, "model.safetensors", "outside the model")
    assert not (tmp_path / "out").exists()
