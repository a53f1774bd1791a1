"""Fault 16: weights or KV cache do not fit into the memory of the device.

Required: an error before the weights are loaded, with the needed and the free memory and the
largest context that fits, exit code 4. That context then fits.

Provoked by: a limit of the device's free memory, and a context and a model that are larger.
"""

import subprocess
from pathlib import Path

import pytest

from tests.support.fake_engine import make_folder
from tests.support.program import assert_error
from tests.support.serve_processes import swiftchat
from tests.support.worker_processes import inject_fault, running_programs

_FREE_BYTES = 200_000_000
_LITTLE_MEMORY = f"""
import swiftchat.engine.device.device as device
device.available_bytes = lambda *_: {_FREE_BYTES}
"""


def run(config: Path, *options: str) -> subprocess.CompletedProcess[bytes]:
    folder = str(config.parent)
    fixed = ("--device", "cpu", "--temp", "0", "-n", "3", "--json", "-p", "x")
    return swiftchat("-m", folder, "--dummy", str(config), *fixed, *options)


def test_a_context_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inject_fault(monkeypatch, tmp_path / "fault", 0, _LITTLE_MEMORY)
    folder = make_folder(tmp_path / "model", max_position_embeddings=10_000_000)
    error, hint = assert_error(run(folder / "config.json", "--ctx-size", "1000000"), 4)
    assert "not enough memory" in error and "GB needed" in error and "0.20 GB free" in error
    fitting = hint.rpartition("the largest context that fits is --ctx-size ")[2]
    assert 10_000 < int(fitting) < 1_000_000
    done = run(folder / "config.json", "--ctx-size", fitting)
    assert done.returncode == 0, done.stderr
    assert running_programs() == []


def test_weights_that_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inject_fault(monkeypatch, tmp_path / "fault", 0, _LITTLE_MEMORY)
    folder = make_folder(tmp_path / "model", num_hidden_layers=8, intermediate_size=500_000)
    error, hint = assert_error(run(folder / "config.json"), 4, "not enough memory: ")
    assert "weights 2.30 GB" in error and "0.20 GB free" in error
    assert hint == "hint: use a smaller model"
