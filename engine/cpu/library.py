"""Choose and load the variant of the compiled kernels that suits this processor."""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from swiftchat.engine.cpu.compile_kernels import (
    FAILURE,
    LIBRARIES,
    PLAINEST,
    VARIANTS,
    Target,
    host_target,
    interface_digest,
    library_path,
)
from swiftchat.engine.cpu.features import REQUIRED, Feature
from swiftchat.engine.cpu.native import Program, Run
from swiftchat.errors import DeviceError, UsageError

VARIABLE = "SWIFTCHAT_CPU_KERNELS"
_OFF = "off"
_AUTO = "auto"


@dataclass(frozen=True)
class KernelChoice:
    """The library whose kernels compute on the CPU; None: torch's operators compute.

    `reason` says why this variant, or why none. `features` are None if they are unknown.
    """

    library: ctypes.CDLL | None
    variant: str | None
    features: Feature | None
    reason: str


def choose_kernels(environ: Mapping[str, str], folder: Path = LIBRARIES) -> KernelChoice:
    """Return the best compiled variant that the processor runs, or the one that the user asks for.

    `SWIFTCHAT_CPU_KERNELS` is the name of a variant, `off`, or `auto`, its default. Raises
    UsageError for another name or a variant that the processor does not run, DeviceError if the
    variant asked for cannot be loaded.
    """
    request = environ.get(VARIABLE) or _AUTO
    if request == _OFF:
        return KernelChoice(None, None, None, f"switched off by {VARIABLE}={_OFF}")
    target = host_target()
    names = [variant.name for variant in VARIANTS[target.architecture]] if target else []
    if request not in (_AUTO, *names):
        hint = f"use one of {', '.join((_AUTO, _OFF, *names))}"
        raise UsageError(f"{VARIABLE} has the unknown value {request!r}", hint)
    if target is None:
        return KernelChoice(None, None, None, "there are no kernels for this kind of machine")
    try:
        features = _features(target, folder)
        if request == _AUTO:
            return _best(target, features, folder)
        if missing := REQUIRED[request] & ~features:
            hint = f"this processor has {features.words}; unset {VARIABLE}"
            raise UsageError(f"{VARIABLE}={request}: the processor lacks {missing.words}", hint)
        library = load_library(library_path(folder, target, request))
        return KernelChoice(library, request, features, f"chosen by {VARIABLE}")
    except LibraryError as error:
        if request != _AUTO:
            hint = f"unset {VARIABLE}, or install swiftchat again"
            raise DeviceError(f"{VARIABLE}={request}: {error}", hint) from None
        return KernelChoice(None, None, None, str(error))


class LibraryError(Exception):
    """A library is missing or not usable; the message says why."""


@cache
def load_library(path: Path) -> ctypes.CDLL:
    """Load a library, declare its functions and check that it fits to the Python side."""
    if not path.exists():
        failure = path.with_name(FAILURE)
        why = f": {failure.read_text(encoding='utf-8').strip()}" if failure.exists() else ""
        raise LibraryError(f"swiftchat was installed without compiled kernels{why}")
    try:
        library = ctypes.CDLL(str(path))
        library.cpu_features.restype = ctypes.c_ulonglong
        _declare_functions(library)
        is_same = library.interface_digest() == interface_digest()
    except (OSError, AttributeError) as error:  # AttributeError: the library lacks a function
        reason = " ".join(str(error).split())
        raise LibraryError(f"{path.name} cannot be loaded: {reason}") from None
    if not is_same:
        raise LibraryError(f"{path.name} is of another version of swiftchat")
    return library


def _features(target: Target, folder: Path) -> Feature:
    """Ask the variant that every processor runs for the features of this one."""
    return Feature(load_library(library_path(folder, target, PLAINEST)).cpu_features())


def _best(target: Target, features: Feature, folder: Path) -> KernelChoice:
    """Return the fastest variant; the plain one is too slow to be chosen."""
    faster = [v.name for v in VARIANTS[target.architecture] if v.name != PLAINEST]
    for name in reversed(faster):
        if REQUIRED[name] & ~features:
            continue
        library = load_library(library_path(folder, target, name))
        return KernelChoice(library, name, features, f"the processor has {features.words}")
    lacking = REQUIRED[faster[0]].words
    return KernelChoice(None, None, features, f"the processor lacks {lacking}")


def _declare_functions(library: ctypes.CDLL) -> None:
    """Set the types of the functions that the engine calls."""
    library.interface_digest.restype = ctypes.c_uint64
    library.pool_create.argtypes = [ctypes.c_int]
    library.pool_create.restype = ctypes.c_void_p
    library.pool_destroy.argtypes = [ctypes.c_void_p]
    library.pool_destroy.restype = None
    library.pool_active_threads.argtypes = [ctypes.c_void_p]
    library.pool_active_threads.restype = ctypes.c_int
    library.program_workspace_bytes.argtypes = [
        ctypes.POINTER(Program),
        ctypes.c_int,
        ctypes.c_int,
    ]
    library.program_workspace_bytes.restype = ctypes.c_size_t
    library.run_program.argtypes = [
        ctypes.c_void_p,
        ctypes.POINTER(Program),
        ctypes.POINTER(Run),
    ]
    library.run_program.restype = ctypes.c_int
    library.run_host_call.argtypes = [ctypes.c_void_p]
    library.run_host_call.restype = None
    library.host_caller_create.argtypes = [ctypes.c_void_p]
    library.host_caller_create.restype = ctypes.c_void_p
    library.host_caller_destroy.argtypes = [ctypes.c_void_p]
    library.host_caller_destroy.restype = None
