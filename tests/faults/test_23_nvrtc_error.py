"""Fault 23: a kernel does not compile.

Required: an error with the kernel, the architecture and the compiler's log, exit code 4.

Provoked by: a source with an error, which NVRTC compiles in the engine's process. The compiler
needs no GPU; the engine of the test compiles the kernel when it looks for its device.
"""

import subprocess
from pathlib import Path

import pytest

from tests.support.fake_engine import make_folder
from tests.support.program import assert_error
from tests.support.serve_processes import SWIFTCHAT
from tests.support.worker_processes import inject_fault, running_programs

_BROKEN_KERNEL = """
from pathlib import Path
from swiftchat.cuda import cubin_cache, nvrtc
import swiftchat.engine.device.device as device
source = Path({source!r})
nvrtc.source = lambda name: source
find_device = device.find_device
def compiling(*args):
    cubin_cache.CubinCache(None).get("norm", "sm_90a", {{}})
    return find_device(*args)
device.find_device = compiling
"""


def test_a_kernel_that_does_not_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder(tmp_path / "model")
    source = tmp_path / "broken.cu"
    source.write_text(
        'extern "C" __global__ void norm_kernel(float* x) {\n  x[0] = no_such_name;\n}'
    )
    inject_fault(monkeypatch, tmp_path / "fault", 0, _BROKEN_KERNEL.format(source=str(source)))
    command = [*SWIFTCHAT, "-m", str(folder), "--dummy", str(folder / "config.json"), "-p", "x"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
    error, _ = assert_error(done, 4, "kernel norm does not compile for sm_90a")
    assert "broken.cu(2): error" in error and "no_such_name" in error
    assert running_programs() == []
