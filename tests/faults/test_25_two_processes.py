"""Fault 25: two processes convert or download the same model.

Required: one works, the other one says that it waits, and both end with the whole model.

Provoked by: a second process that is started while the first one is held in the middle.
"""

import subprocess
import threading
from pathlib import Path

from swiftchat.weights.model.directory import Model
from tests.support.fake_hub import WEIGHTS, FakeHub, Fault
from tests.support.gguf import tiny as tiny_gguf
from tests.support.program import patched
from tests.support.serve_processes import SWIFTCHAT
from tests.support.tiny_llama import entry_names, tiny_llama
from tests.support.worker_processes import wait_until

WAITING = "waiting for another process"
# The writer waits for a file GO before the second tensor.
_HOLD = """
import time
from swiftchat.weights.formats.safetensors import SafetensorsWriter
write, calls = SafetensorsWriter.write, iter(range(1000))
def writing(*args):
    if next(calls) == 1:
        HELD.touch()
        while not GO.exists():
            time.sleep(0.01)
    write(*args)
SafetensorsWriter.write = writing
"""


def start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_line(process: subprocess.Popen[str], text: str) -> list[str]:
    """Read stderr until a line has this text; return the lines before it."""
    assert process.stderr is not None
    lines: list[str] = []
    for line in process.stderr:
        if text in line:
            return lines
        lines.append(line)
    raise AssertionError(f"{text!r} is not in {lines}")


def test_of_two_processes_one_converts_and_one_waits(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "tiny.gguf", tiny_llama())
    held, go = tmp_path / "held", tmp_path / "go"
    arguments = ["convert", str(tmp_path / "tiny.gguf"), str(tmp_path / "target" / "out")]
    code = f"from pathlib import Path\nHELD, GO = Path({str(held)!r}), Path({str(go)!r})\n{_HOLD}"
    with start(patched(code, *arguments)) as first:
        wait_for_line(first, "converting")
        wait_until(held.exists, 60)
        with start([*SWIFTCHAT, *arguments]) as second:
            wait_for_line(second, WAITING)
            assert not (tmp_path / "target" / "out").exists()
            go.touch()
            stdout, stderr = second.communicate(timeout=60)
            assert (second.returncode, stdout) == (0, f"{arguments[-1]}\n")
            assert "converting" not in stderr
        first.communicate(timeout=60)
        assert first.returncode == 0
    assert entry_names(tmp_path / "target") == ["out"]
    Model.open(tmp_path / "target" / "out").checkpoint()


def test_of_two_processes_one_downloads_and_one_waits(hub: FakeHub, tmp_path: Path) -> None:
    arrived, go = threading.Event(), threading.Event()
    hub.faults["model.safetensors"] = Fault(arrived=arrived, waits_for=go)
    command = [*SWIFTCHAT, "download", "owner/model"]
    try:
        with start(command) as first:
            assert arrived.wait(60)
            with start(command) as second:
                wait_for_line(second, WAITING)
                go.set()
                path, stderr = second.communicate(timeout=60)
                assert second.returncode == 0, stderr
            assert first.communicate(timeout=60)[0] == path and first.returncode == 0
    finally:
        go.set()
    assert (Path(path.strip()) / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.ranges("model.safetensors") == [None]
    assert not list((tmp_path / "hub-home" / "hub" / ".locks").rglob("*.lock"))
