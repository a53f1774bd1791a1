"""What a launch passes to the driver, without a GPU: the bindings, but no driver."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cuda.bindings import driver

from swiftchat.cuda import gpu as gpu_module
from swiftchat.cuda.gpu import Kernel
from swiftchat.cuda.signature import KernelSpec
from tests.support.kernels.sources import declare

SPEC = KernelSpec.of("scale")
TABLE = """
x      fp32 [n]
table  fp32 [n] or null
"""
OK = driver.CUresult.CUDA_SUCCESS
STREAM = 77
CPU = torch.device("cpu")


class RecordingDriver:
    """The bindings, with calls that succeed; it keeps what launches were given."""

    def __init__(self) -> None:
        self.launches: list[dict[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(driver, name)

    def cuModuleLoadData(self, cubin: bytes) -> tuple[Any, ...]:
        return OK, 1

    def cuModuleGetFunction(self, module: int, entry: bytes) -> tuple[Any, ...]:
        assert entry == b"scale_kernel"
        return OK, 2

    def cuFuncSetAttribute(self, *_: Any) -> tuple[Any, ...]:
        return (OK,)

    def cuFuncGetAttribute(self, *_: Any) -> tuple[Any, ...]:
        return OK, 0

    def cuLaunchKernelEx(self, config: Any, function: int, arguments: Any, _: int) -> tuple[Any]:
        attributes = {
            each.id.name.removeprefix("CU_LAUNCH_ATTRIBUTE_"): each.value for each in config.attrs
        }
        self.launches.append(
            {
                "grid": (config.gridDimX, config.gridDimY, config.gridDimZ),
                "block": config.blockDimX,
                "stream": int(config.hStream),
                "cluster": attributes["CLUSTER_DIMENSION"].clusterDim.x
                if "CLUSTER_DIMENSION" in attributes
                else 1,
                "dependent": attributes[
                    "PROGRAMMATIC_STREAM_SERIALIZATION"
                ].programmaticStreamSerializationAllowed,
                "values": arguments[0],
            }
        )
        return (OK,)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RecordingDriver:
    declare(
        *(monkeypatch, tmp_path, SPEC.name, TABLE),
        "float* x, const float* table, int n, float factor",
    )
    recording = RecordingDriver()
    monkeypatch.setattr(gpu_module, "cuda_driver", lambda: recording)
    stream = SimpleNamespace(cuda_stream=STREAM)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    return recording


def test_launches_do_not_change_each_other(recorded: RecordingDriver) -> None:
    gpu: Any = SimpleNamespace(device=CPU, has_dependent_launch=True, launches=None)
    kernel, x = Kernel(gpu, SPEC, b""), torch.zeros(3)
    for grid, cluster in ((5, 1), ((6, 2), 2), ((7, 2, 3), 1), (8, 4), (9, 2)):
        kernel(grid, 128, cluster=cluster, factor=0.5, table=None, x=x)
    shapes = [(each["grid"], each["cluster"]) for each in recorded.launches]
    assert shapes == [
        ((5, 1, 1), 1),
        ((6, 2, 1), 2),
        ((7, 2, 3), 1),
        ((8, 1, 1), 4),
        ((9, 1, 1), 2),
    ]
    for launch in recorded.launches:
        assert (launch["block"], launch["stream"], launch["dependent"]) == (128, STREAM, 1)
        assert launch["values"] == (x.data_ptr(), 0, 3, 0.5)


def test_missing_and_unknown_arguments(recorded: RecordingDriver) -> None:
    gpu: Any = SimpleNamespace(device=CPU, has_dependent_launch=True, launches=None)
    with pytest.raises(TypeError, match=r"scale: missing arguments \['factor'\], unknown \['by'\]"):
        Kernel(gpu, SPEC, b"")(1, 32, x=torch.zeros(1), table=None, n=1, by=2)
    assert recorded.launches == []


def test_only_grids_with_blocks_are_launched(recorded: RecordingDriver) -> None:
    gpu: Any = SimpleNamespace(device=CPU, has_dependent_launch=True, launches=None)
    kernel, x = Kernel(gpu, SPEC, b""), torch.zeros(0)
    kernel((0, 2), 32, x=x, factor=1.0)
    kernel((2, 0), 32, x=x, factor=1.0)
    with pytest.raises(ValueError, match=r"scale: a grid of \(1, 65536\) is larger than 65535"):
        kernel((1, 65_536), 32, x=x, factor=1.0)
    assert recorded.launches == []
    kernel((1, 65_535), 32, x=x, factor=1.0)
    assert len(recorded.launches) == 1
