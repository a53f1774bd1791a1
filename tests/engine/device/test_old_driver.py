"""A driver that is older than torch needs, and a machine without a GPU."""

import ctypes

import pytest
import torch

from swiftchat.engine.device.device import cpu_note, find_device
from swiftchat.errors import DeviceError

VERSIONS = "the driver supports CUDA 11.4, torch needs CUDA 13.0, so NVIDIA driver 580 or newer"


class OldDriver:
    """The driver's library, which reports CUDA 11.4."""

    def cuDriverGetVersion(self, pointer: object) -> int:
        pointer._obj.value = 11040  # type: ignore[attr-defined]
        return 0


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.mark.fault(22)
def test_an_old_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: OldDriver())
    device = find_device("auto")
    assert device.type == "cpu"
    assert cpu_note("auto", device) == f"the CPU computes: {VERSIONS}"
    assert cpu_note("cpu", device) == ""
    with pytest.raises(DeviceError, match=f"no GPU for --device cuda:0: torch .*{VERSIONS}") as old:
        find_device("cuda:0")
    assert old.value.exit_code == 4 and "--device cpu" in old.value.hint


@pytest.mark.fault(22)
def test_a_machine_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", no_library)
    device = find_device("auto")
    assert device.type == "cpu" and cpu_note("auto", device) == ""
    with pytest.raises(DeviceError, match=r"torch .* finds 0$") as none:
        find_device("cuda")
    assert none.value.exit_code == 4 and "--device cpu" in none.value.hint
