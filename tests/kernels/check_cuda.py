"""Every CUDA kernel compiles for every architecture; run by `python -m tests.kernels`, no GPU."""

import pytest

from swiftchat.cuda import nvrtc
from tests.support.kernels.variants import Compilation, compilations


def name_of(compilation: Compilation) -> str:
    macros = "-".join(f"{name}={value}" for name, value in compilation.defines.items())
    return f"{compilation.name}-{compilation.arch}-{macros}"


@pytest.mark.parametrize("compilation", compilations(), ids=name_of)
def test_kernel_compiles(compilation: Compilation) -> None:
    cubin = nvrtc.compile_cubin(
        compilation.name,
        compilation.arch,
        compilation.defines,
        optimized=compilation.is_optimized,
    )
    assert cubin[:4] == b"\x7fELF"
