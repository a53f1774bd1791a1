"""Fault 12: the disk is full, or becomes full, while a model or a conversation is written.

Required: `convert` and `download` end with the needed and the free space and exit code 8, and
nothing has the final name; a download continues later with the bytes it has. A conversation goes on
unsaved with one warning, and a command whose purpose is to save ends with exit code 8. What was
saved before is whole.

Provoked by: a tmpfs of two megabytes, mounted in a namespace of its own, which another writer
fills before the start or meanwhile.

Needs: a system that allows user and mount namespaces.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support import fake_engine, llama_layouts
from tests.support.fake_hub import WEIGHTS, FakeHub, Fault
from tests.support.tiny_llama import tiny_llama
from tests.support.worker_processes import wait_until

_NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]
_MOUNT = 'mount -t tmpfs -o size=2m none "$1" && shift && exec "$@"'
_HEAD = """
import json, os, pathlib, subprocess, sys
disk, source = map(pathlib.Path, sys.argv[1:])
filler = disk / "filler"
program = [sys.executable, "-m", "swiftchat.chat"]

def fill_up():
    "Fill the disk once, as another program could."
    if not filler.exists():
        with filler.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass

def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return [done.returncode, done.stderr, left()]

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


def on_the_disk(disk: Path, source: Path, script: str, **env: str) -> Any:
    """Run the script with the tmpfs mounted at `disk` and return its JSON output."""
    program = [sys.executable, "-c", _HEAD + script, disk, source]
    command = [*_NAMESPACE, "sh", "-c", _MOUNT, "sh", disk, *program]
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, env={**os.environ, **env}
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_full(code: int, stderr: str, message: str) -> None:
    """Check that a program ended with this error about the disk, and a hint."""
    *_, error, hint = stderr.splitlines()
    assert code == 8 and stderr.count("error: ") == stderr.count("hint: ") == 1, stderr
    assert error.startswith("error: ") and message in error and hint.startswith("hint: "), stderr


# A converter whose disk another program fills after the tensor number 5.
_FILLED_MEANWHILE = """
import sys, runpy
from swiftchat.weights.formats import safetensors
write, calls = safetensors.SafetensorsWriter.write, iter(range(1000))
def filling(self, name, array):
    if next(calls) == 5:
        with open(FILLER, "wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass
    write(self, name, array)
safetensors.SafetensorsWriter.write = filling
runpy.run_module("swiftchat.chat", run_name="__main__", alter_sys=True)
"""
_CONVERT = f"""
command = ["convert", source, disk / "out", "--dtype"]
too_small = run(*program, *command, "float32")
script = "FILLER = " + repr(str(filler)) + {_FILLED_MEANWHILE!r}
filled = run(sys.executable, "-c", script, *command, "bfloat16")
filler.unlink()
whole = run(*program, *command, "bfloat16")
print(json.dumps([too_small, filled, whole]))
"""


def test_convert_to_a_full_disk(tmp_path: Path, disk: Path) -> None:
    model = tiny_llama(hidden_size=128, intermediate_size=512, num_hidden_layers=3)
    llama_layouts.write_bin(tmp_path / "in", model)  # 3.1 MB in float32, 1.6 MB in bfloat16
    too_small, filled, whole = on_the_disk(disk, tmp_path / "in", _CONVERT)
    code, stderr, left = too_small
    assert_full(code, stderr, "MB needed, 2.10 MB free")
    assert "not enough disk space" in stderr and left == []
    code, stderr, left = filled
    assert_full(code, stderr, "MB needed")
    assert "MB free" in stderr and left == []
    names = ("config.json", "model.safetensors", "swiftchat.json")
    assert whole[0] == 0 and whole[2] == ["out", *(f"out/{name}" for name in names)]


_DOWNLOAD = """
import threading, time

download = [*program, "download", "owner/model", "-y", "-q"]
fill_up()
full = run(*download)
filler.unlink()

def fill_up_later():
    "Fill the disk when a part of the weights has arrived; the hub has stalled then."
    while not any(part.stat().st_size > 250_000 for part in disk.rglob("*.swiftchat-part")):
        time.sleep(0.01)
    fill_up()
    pathlib.Path(os.environ["FILLED"]).touch()

threading.Thread(target=fill_up_later).start()
filled = run(*download)
filler.unlink()
print(json.dumps([full, filled, run(*download)]))
"""


def test_download_to_a_full_disk(hub: FakeHub, tmp_path: Path, disk: Path) -> None:
    filled_up, goes_on = tmp_path / "filled", threading.Event()

    def go_on() -> None:
        wait_until(filled_up.exists, 120)
        goes_on.set()

    threading.Thread(target=go_on, daemon=True).start()
    hub.faults["model.safetensors"] = Fault(stall_after=300_000, times=1, stalls_until=goes_on)
    home = {"HF_HOME": str(disk / "hub"), "FILLED": str(filled_up)}
    full, filled, whole = on_the_disk(disk, tmp_path, _DOWNLOAD, **home)
    code, stderr, left = full
    assert_full(code, stderr, "MB needed")
    assert "MB free" in stderr and not [name for name in left if "snapshots" in name]
    code, stderr, left = filled
    assert_full(code, stderr, "MB needed, 0.00 MB free")
    assert not [name for name in left if "snapshots" in name]
    assert len([name for name in left if name.endswith(".swiftchat-part")]) == 1
    assert whole[0] == 0
    found = {Path(name).name for name in whole[2] if "snapshots" in name}
    assert {"model.safetensors", "config.json"} <= found
    resumed = hub.ranges("model.safetensors")[-1]
    assert resumed is not None
    assert 250_000 < int(resumed.removeprefix("bytes=").partition("-")[0]) < len(WEIGHTS)


_SAVE = """
def chat(text):
    return run(*json.loads(os.environ["CHAT"]), "-p", text)

first = chat("The first question")
fill_up()
unsaved = chat("The second question")
imported = run(*program, "sessions", "import", source)
filler.unlink()
listing = subprocess.run([*program, "sessions", "list"], capture_output=True, text=True).stdout
third = chat("The third question")
print(json.dumps([first, unsaved, imported, listing, third]))
"""


def test_conversations_on_a_full_disk(tmp_path: Path, disk: Path) -> None:
    folder = fake_engine.make_folder(tmp_path / "model")
    talk = tmp_path / "talk.json"
    talk.write_text(json.dumps([{"role": "user", "content": "Imported " * 50_000}]))
    chat = [sys.executable, fake_engine.__file__, str(folder), json.dumps(["An answer."])]
    home = {"XDG_DATA_HOME": str(disk / "data"), "CHAT": json.dumps(chat)}
    first, unsaved, imported, listing, third = on_the_disk(disk, talk, _SAVE, **home)
    assert first[:2] == third[:2] == [0, ""]
    assert unsaved[0] == 0 and unsaved[1].count("not saved") == unsaved[1].count("\n") == 1
    assert_full(imported[0], imported[1], "full")
    assert "The first question" in listing and "second" not in listing
    assert "Imported" not in listing
