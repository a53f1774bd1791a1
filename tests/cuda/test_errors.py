"""Errors for an unsupported GPU, a failing driver and a missing compiler."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from swiftchat.cuda import gpu as gpu_module
from swiftchat.cuda import nvrtc
from swiftchat.cuda.cubin_cache import CubinCache
from swiftchat.cuda.gpu import Gpu, check
from swiftchat.errors import DeviceError, KernelCompileError, OutOfMemory


@pytest.fixture
def old_gpu(monkeypatch) -> None:
    properties = SimpleNamespace(name="Old GPU", major=7, minor=5, multi_processor_count=40)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)


@pytest.mark.usefixtures("old_gpu")
def test_error_for_an_old_gpu_names_it() -> None:
    with pytest.raises(DeviceError, match=r"Old GPU has compute capability 7\.5; .* 8\.0"):
        Gpu(torch.device("cuda", 0), CubinCache(None))


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)])
def test_architecture_of_every_capability(capability: tuple[int, int]) -> None:
    assert nvrtc.architecture(capability) in nvrtc.ARCHITECTURES


def test_driver_status_becomes_an_exception() -> None:
    driver = gpu_module.cuda_driver()
    assert check((driver.CUresult.CUDA_SUCCESS, 7)) == 7
    assert check((driver.CUresult.CUDA_SUCCESS, 7, 8)) == (7, 8)
    with pytest.raises(OutOfMemory, match="CUDA_ERROR_OUT_OF_MEMORY"):
        check((driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY,))
    # The driver's status for machine code that it does not support.
    with pytest.raises(DeviceError, match="NO_BINARY_FOR_GPU") as caught:
        check((driver.CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU,))
    assert "doctor" in caught.value.hint and caught.value.exit_code == 4


def test_error_for_missing_headers_has_an_install_hint(monkeypatch) -> None:
    monkeypatch.setattr(nvrtc.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(nvrtc.Path, "exists", lambda self: False)
    nvrtc.header_folders.cache_clear()
    try:
        with pytest.raises(KernelCompileError, match=r"cuda_bf16\.h") as caught:
            nvrtc.header_folders()
        assert "swiftchat[cuda]" in caught.value.hint
    finally:
        nvrtc.header_folders.cache_clear()


@pytest.mark.fault(23)
def test_error_for_a_kernel_that_does_not_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "broken.cu"
    source.write_text(
        'extern "C" __global__ void norm_kernel(float* x) {\n  x[0] = no_such_name;\n}'
    )
    monkeypatch.setattr(nvrtc, "source", lambda name: source)
    with pytest.raises(
        KernelCompileError, match="kernel norm does not compile for sm_90a"
    ) as error:
        CubinCache(None).get("norm", "sm_90a", {})
    assert error.value.exit_code == 4
    assert "broken.cu(2): error" in error.value.message and "no_such_name" in error.value.message
