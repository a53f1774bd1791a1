"""Fault 21: a conversion is interrupted or killed.

Required: nothing has the final name; after Ctrl-C and SIGTERM nothing is left, exit codes 130 and
143. A rerun works and removes what a killed one has left.

Provoked by: signals that the converter sends to itself before it writes a random tensor, and while
it verifies what it has written.
"""

import random
import signal
import subprocess
from pathlib import Path

import pytest

from swiftchat.weights.model.directory import Model
from tests.support.gguf import tiny as tiny_gguf
from tests.support.program import patched
from tests.support.tiny_llama import entry_names, tiny_llama

NUM_TENSORS = 21
# The writer raises the signal before the tensor POINT, or before it verifies the file.
_RAISE = """
import os
from swiftchat.weights.convert import convert
from swiftchat.weights.formats.safetensors import SafetensorsWriter
write, verify, calls = SafetensorsWriter.write, convert.verify_files, iter(range(1000))
def writing(*args):
    if next(calls) == POINT:
        os.kill(os.getpid(), SIGNAL)
    write(*args)
def verifying(*args):
    assert next(calls) == NUM_TENSORS
    if POINT == NUM_TENSORS:
        os.kill(os.getpid(), SIGNAL)
    verify(*args)
SafetensorsWriter.write, convert.verify_files = writing, verifying
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    tiny_gguf.write(path, tiny_llama())
    return path


def convert(
    source: Path, target: Path, number: int = 0, point: int = -1
) -> subprocess.CompletedProcess[bytes]:
    code = f"POINT, SIGNAL, NUM_TENSORS = {point}, {int(number)}, {NUM_TENSORS}\n{_RAISE}"
    command = patched(code, "convert", source, target / "out")
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)


def test_a_killed_conversion_leaves_nothing_under_the_name(tmp_path: Path, source: Path) -> None:
    target = tmp_path / "target"
    for point in (random.Random().randrange(NUM_TENSORS), NUM_TENSORS):
        done = convert(source, target, signal.SIGKILL, point)
        assert done.returncode == -signal.SIGKILL, f"{point}: {done.stderr.decode()}"
        left = entry_names(target)
        assert "out" not in left and any(name.endswith(".partial") for name in left), left
    done = convert(source, target)
    assert done.returncode == 0, done.stderr
    assert entry_names(target) == ["out"]
    assert len(Model.open(target / "out").checkpoint().tensors) == NUM_TENSORS


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_conversion_leaves_nothing(
    tmp_path: Path, source: Path, number: int, code: int
) -> None:
    point = random.Random().randrange(NUM_TENSORS)
    done = convert(source, tmp_path / "target", number, point)
    assert done.returncode == code, f"{point}: {done.stderr.decode()}"
    assert b"Traceback" not in done.stderr and b"error" not in done.stderr
    assert entry_names(tmp_path / "target") == []
