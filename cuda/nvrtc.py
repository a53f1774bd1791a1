"""Compiles CUDA C++ to machine code at run time. Needs no GPU and no driver."""

import importlib.util
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from swiftchat.errors import KernelCompileError

KERNELS = Path(__file__).parent / "kernels"
# Everything a GPU of sm_80 or newer can be; the letter unlocks instructions of that chip alone.
ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120")

OLDEST_CAPABILITY = (8, 0)
_LOG_CHARACTERS = 4000  # that are shown of a compile log


def architecture(capability: tuple[int, int]) -> str:
    """The NVRTC architecture for a compute capability: (9, 0) → `sm_90a`."""
    major, minor = capability
    return f"sm_{major}{minor}" + ("a" if capability == (9, 0) else "")


def has_bindings() -> bool:
    """Whether what compiles and launches kernels from Python is installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("cuda", "cuda.bindings"))


@cache
def _sources() -> dict[str, Path]:
    return {file.stem: file for file in KERNELS.glob("*/*.cu")}


def source(name: str) -> Path:
    """Return the file of a kernel, `kernels/FOLDER/NAME.cu`; names are unique across folders."""
    return _sources()[name]


@cache
def version() -> str:
    """NVRTC's version, as `13.0`; raises `KernelCompileError` when there is none."""
    major, minor = _check(_nvrtc().nvrtcVersion())
    return f"{major}.{minor}"


def compile_cubin(name: str, arch: str, defines: Mapping[str, str]) -> bytes:
    """Machine code of `kernels/FOLDER/NAME.cu` for `arch`, with the given macros defined.

    Raises `KernelCompileError` with the compiler's log, which names file and line.
    """
    nvrtc = _nvrtc()
    file = source(name)
    options = [option.encode() for option in compile_options(arch, defines)]
    program = _check(nvrtc.nvrtcCreateProgram(file.read_bytes(), str(file).encode(), 0, [], []))
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = bytearray(_check(nvrtc.nvrtcGetProgramLogSize(program)))
            _check(nvrtc.nvrtcGetProgramLog(program, log))
            words = log.decode().strip("\0")[:_LOG_CHARACTERS]
            raise KernelCompileError(
                f"kernel {name} does not compile for {arch}: {words}",
                "swiftchat doctor shows the compiler and its headers",
            )
        cubin = bytearray(_check(nvrtc.nvrtcGetCUBINSize(program)))
        _check(nvrtc.nvrtcGetCUBIN(program, cubin))
        return bytes(cubin)
    finally:
        _check(nvrtc.nvrtcDestroyProgram(program))


def compile_options(arch: str, defines: Mapping[str, str]) -> list[str]:
    """Options for one kernel. No fast math: it would change divisions and square roots."""
    return [
        f"--gpu-architecture={arch}",
        "--std=c++17",
        "--device-as-default-execution-space",
        f"-I{KERNELS}",
        *(f"-I{folder}" for folder in header_folders()),
        *(f"-D{key}={value}" for key, value in sorted(defines.items())),
    ]


@cache
def header_folders() -> tuple[Path, ...]:
    """Where CUDA's headers lie: the `nvidia-cuda-runtime` wheel's, then an installed toolkit's."""
    spec = importlib.util.find_spec("nvidia")
    places = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    candidates = [place / "cu13" / "include" for place in places]
    candidates += [place / "cuda_runtime" / "include" for place in places]
    candidates.append(Path("/usr/local/cuda/include"))
    found = tuple(folder for folder in candidates if (folder / "cuda_bf16.h").exists())
    if not found:
        raise KernelCompileError(
            "CUDA's headers (cuda_bf16.h) were not found",
            "pip install 'swiftchat[cuda]'",
        )
    return found[:1]


@cache
def _nvrtc() -> Any:  # the bindings have no stubs
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()  # loads the library
    except (ImportError, RuntimeError) as error:
        raise KernelCompileError(
            f"NVRTC, the CUDA compiler, is missing: {error}", "pip install 'swiftchat[cuda]'"
        ) from error
    return nvrtc


def _check(result: Any) -> Any:
    """The values of a (status, *values) tuple; a failed status is a `KernelCompileError`."""
    status, *values = result
    if int(status) != 0:
        raise KernelCompileError(f"NVRTC failed: {status.name}")
    return values[0] if len(values) == 1 else tuple(values)
