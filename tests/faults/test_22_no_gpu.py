"""Fault 22: there is no GPU, or its driver is older than torch needs.

Required: the CPU computes, with a note if there is a driver; where a GPU was asked for, an error
with the found and the needed version and exit code 4.

Provoked by: a driver that reports CUDA 11.4 and a torch that reports that it needs CUDA 13.0, both
in the engine's process.
"""

import subprocess
from pathlib import Path

import pytest

from tests.support.fake_engine import make_folder
from tests.support.program import assert_error
from tests.support.serve_processes import swiftchat
from tests.support.worker_processes import inject_fault

_OLD_DRIVER = """
import ctypes
import torch

class OldDriver:
    def cuInit(self, flags):
        return 803  # the driver is too old

    def cuDriverGetVersion(self, pointer):
        pointer._obj.value = 11040
        return 0

class Library(ctypes.CDLL):
    def __new__(cls, name, *args, **options):
        return OldDriver() if name == "libcuda.so.1" else super().__new__(cls)

ctypes.CDLL = Library
torch.version.cuda = "13.0"
torch.cuda.is_available = lambda: False
torch.cuda.device_count = lambda: 0
"""
VERSIONS = "the driver supports CUDA 11.4, torch needs CUDA 13.0, so NVIDIA driver 580 or newer"


def run(tmp_path: Path, device: str) -> subprocess.CompletedProcess[bytes]:
    folder = make_folder(tmp_path / "model")
    dummy = ("--dummy", str(folder / "config.json"), "--temp", "0", "-n", "2")
    return swiftchat("-m", str(folder), *dummy, "--device", device, "-p", "x")


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_an_old_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    inject_fault(monkeypatch, tmp_path / "fault", 0, _OLD_DRIVER)
    done = run(tmp_path, device)
    if device == "auto":
        note = f"note: the CPU computes: {VERSIONS}\n"
        assert done.returncode == 0 and done.stderr.decode().startswith(note), done.stderr
    else:
        _, hint = assert_error(done, 4, "no GPU for --device cuda", VERSIONS)
        assert "--device cpu" in hint


def test_a_machine_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    _, hint = assert_error(run(tmp_path, "cuda"), 4, "no GPU for --device cuda: torch")
    assert "--device cpu" in hint
