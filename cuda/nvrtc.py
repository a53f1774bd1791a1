"""Compile CUDA C++ to machine code at run time with NVRTC; needs no GPU and no driver."""

import importlib.util
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from swiftchat.errors import KernelCompileError

KERNELS = Path(__file__).parent / "kernels"
# All architectures from sm_80 on. The letter a enables instructions that only this chip has.
ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120")

OLDEST_CAPABILITY = (8, 0)
_MAX_LOG_CHARACTERS = 4000  # of a compile log, in an error message


def architecture(capability: tuple[int, int]) -> str:
    """Return the NVRTC architecture of a compute capability: (9, 0) → `sm_90a`."""
    major, minor = capability
    return f"sm_{major}{minor}" + ("a" if capability == (9, 0) else "")


def has_bindings() -> bool:
    """Return whether cuda-python, which compiles and launches kernels, is installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("cuda", "cuda.bindings"))


@cache
def _sources() -> dict[str, Path]:
    return {file.stem: file for file in KERNELS.glob("*/*.cu")}


def source(name: str) -> Path:
    """Return the file of a kernel, `kernels/FOLDER/NAME.cu`; names are unique across folders."""
    return _sources()[name]


@cache
def version() -> str:
    """Return NVRTC's version, as `13.0`; raise `KernelCompileError` if it is not installed."""
    major, minor = _check(_nvrtc().nvrtcVersion())
    return f"{major}.{minor}"


def compile_cubin(
    name: str, arch: str, defines: Mapping[str, str], *, optimized: bool = True
) -> bytes:
    """Compile `kernels/FOLDER/NAME.cu` for `arch` with these macros; return the cubin.

    Not `optimized` it takes a third of the time. Raises `KernelCompileError` with the compiler's
    log, which names file and line.
    """
    nvrtc = _nvrtc()
    file = source(name)
    fast = [] if optimized else ["--Ofast-compile=max"]
    options = [option.encode() for option in (*compile_options(arch, defines), *fast)]
    program = _check(nvrtc.nvrtcCreateProgram(file.read_bytes(), str(file).encode(), 0, [], []))
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = bytearray(_check(nvrtc.nvrtcGetProgramLogSize(program)))
            _check(nvrtc.nvrtcGetProgramLog(program, log))
            text = log.decode().strip("\0")[:_MAX_LOG_CHARACTERS]
            raise KernelCompileError(
                f"kernel {name} does not compile for {arch}: {text}",
                "run swiftchat doctor to check the compiler and its headers",
            )
        cubin = bytearray(_check(nvrtc.nvrtcGetCUBINSize(program)))
        _check(nvrtc.nvrtcGetCUBIN(program, cubin))
        return bytes(cubin)
    finally:
        _check(nvrtc.nvrtcDestroyProgram(program))


def compile_options(arch: str, defines: Mapping[str, str]) -> list[str]:
    """Return the compiler options; without fast math, so that division and sqrt round correctly."""
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
    """Return the folder of CUDA's headers, of the `nvidia-cuda-runtime` wheel or a toolkit."""
    spec = importlib.util.find_spec("nvidia")
    places = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    candidates = [place / "cu13" / "include" for place in places]
    candidates += [place / "cuda_runtime" / "include" for place in places]
    candidates.append(Path("/usr/local/cuda/include"))
    found = tuple(folder for folder in candidates if (folder / "cuda_bf16.h").exists())
    if not found:
        raise KernelCompileError(
            "CUDA's headers (cuda_bf16.h) are not installed",
            "pip install 'swiftchat[cuda]'",
        )
    return found[:1]


@cache
def _nvrtc() -> Any:  # the bindings have no type stubs
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()  # loads the library
    except (ImportError, RuntimeError) as error:
        raise KernelCompileError(
            f"NVRTC, the CUDA compiler, is not installed: {error}", "pip install 'swiftchat[cuda]'"
        ) from error
    return nvrtc


def _check(result: Any) -> Any:
    """Return the values of (status, *values); raise `KernelCompileError` for an error."""
    status, *values = result
    if int(status) != 0:
        raise KernelCompileError(f"NVRTC failed: {status.name}")
    return values[0] if len(values) == 1 else tuple(values)
