"""convert and download on a full disk: a real tmpfs of two megabytes.

The tests mount it in a user and mount namespace of a child process, if the system allows that.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from tests.support import llama_layouts
from tests.support.fake_hub import MODEL, WEIGHTS, FakeHub, in_use
from tests.support.tiny_llama import tiny_llama

DISK_BYTES = 2 * 2**20
_NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]
_MOUNT = 'mount -t tmpfs -o size=2m none "$1" && shift && exec "$@"'
_HEAD = """
import json, pathlib, subprocess, sys
from swiftchat.errors import SwiftchatError
disk, source = map(pathlib.Path, sys.argv[1:])
filler = disk / "filler"

def fill_up(*report):
    "Fill the disk once, as another program could."
    if not filler.exists():
        with filler.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass

def error_of(work):
    try:
        work()
    except SwiftchatError as error:
        return [error.exit_code, error.message, left()]
    return "nothing raised"

def left():
    return sorted(str(path.relative_to(disk)) for path in disk.rglob("*") if path != filler)
"""


def _may_mount(folder: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    command = [*_NAMESPACE, "sh", "-c", _MOUNT, "sh", str(folder), "true"]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    folder = tmp_path / "disk"
    folder.mkdir()
    if not _may_mount(folder):
        pytest.skip("cannot mount a tmpfs in a namespace on this machine")
    return folder


def on_the_disk(disk: Path, source: Path, script: str) -> Any:
    """Run the script with the tmpfs mounted at `disk` and return its JSON output."""
    program = [sys.executable, "-c", _HEAD + script, disk, source]
    command = [*_NAMESPACE, "sh", "-c", _MOUNT, "sh", disk, *program]
    done = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "HF_ENDPOINT": constants.ENDPOINT},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


_CONVERT = """
from swiftchat.weights.convert.convert import convert

command = [sys.executable, "-m", "swiftchat.chat", "convert", source, disk / "out"]
small = subprocess.run([*command, "--dtype", "float32"], capture_output=True, text=True)
too_small = [small.returncode, small.stderr, left()]
filled = error_of(lambda: convert(source, disk / "out", dtype="bfloat16", progress=fill_up))
filler.unlink()
convert(source, disk / "out", dtype="bfloat16")
print(json.dumps([too_small, filled, left()]))
"""


def test_convert_to_a_full_disk(tmp_path: Path, disk: Path) -> None:
    model = tiny_llama(hidden_size=128, intermediate_size=512, num_hidden_layers=3)
    llama_layouts.write_bin(tmp_path / "in", model)  # 3.1 MB in float32, 1.6 MB in bfloat16
    too_small, filled, at_end = on_the_disk(disk, tmp_path / "in", _CONVERT)
    code, stderr, left = too_small
    assert code == 8 and left == []
    assert "MB needed, 2.10 MB free" in stderr and stderr.count("\n") == 2
    assert stderr.startswith("error: not enough disk space") and "\nhint: " in stderr
    code, message, left = filled
    assert code == 8 and left == []
    assert "MB needed" in message and "MB free" in message
    whole = ["out", *(f"out/{n}" for n in ("config.json", "model.safetensors", "swiftchat.json"))]
    assert at_end == whole


_DOWNLOAD = """
from swiftchat.weights.download import download
from swiftchat.weights.store import Store

store = Store(disk / "models", disk / "converted", disk / "hub")
fill_up()
full = error_of(lambda: download("owner/model", store))
filler.unlink()

def fill_up_later(label, done, total):
    if done > 300_000:
        fill_up()

filled = error_of(lambda: download("owner/model", store, progress=fill_up_later))
filler.unlink()
path = download("owner/model", store)
print(json.dumps([full, filled, sorted(file.name for file in path.iterdir())]))
"""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with in_use(FakeHub(dict(MODEL), "owner/model"), monkeypatch) as hub:
        yield hub


def test_download_to_a_full_disk(hub: FakeHub, tmp_path: Path, disk: Path) -> None:
    full, filled, at_end = on_the_disk(disk, tmp_path, _DOWNLOAD)
    assert full[0] == 8
    assert not [name for name in full[2] if "snapshots" in name]
    code, message, left = filled
    assert code == 8
    assert "MB needed" in message and "0.00 MB free" in message
    assert not [name for name in left if "snapshots" in name]
    parts = [name for name in left if name.endswith(".swiftchat-part")]
    assert len(parts) == 1
    assert "model.safetensors" in at_end and "config.json" in at_end
    first, resumed = hub.ranges("model.safetensors")
    assert first is None or first == "bytes=0-"
    assert int(resumed.removeprefix("bytes=").partition("-")[0]) > 300_000
    assert len(WEIGHTS) < DISK_BYTES
