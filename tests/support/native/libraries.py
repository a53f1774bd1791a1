"""The compiled CPU kernels that tests load.

In a checkout they are compiled when sources have changed; an installed package has its own.
"""

import ctypes
import os
from functools import cache
from pathlib import Path

import pytest

from swiftchat.engine.cpu.compile_kernels import (
    KERNELS,
    LIBRARIES,
    PLAINEST,
    VARIANTS,
    build,
    host_target,
    library_path,
)
from swiftchat.engine.cpu.features import REQUIRED, Feature
from swiftchat.engine.cpu.library import load_library

# An installed package has only the headers that Python reads.
SOURCES = Path(__file__).parents[3] / "engine" / "cpu" / "kernels"
# A folder of libraries compiled with sanitizers, see tests/kernels/check_cpu.py.
SANITIZED = "TEST_SWIFTCHAT_CPU_LIBRARIES"
_TARGET = host_target()
VARIANT_NAMES = [v.name for v in VARIANTS[_TARGET.architecture]] if _TARGET else []


def compile_kernels(*variants: str) -> None:
    """Compile variants (default: all) whose sources have changed. Raises BuildError."""
    if _TARGET is not None and any(KERNELS.glob("*.c")) and SANITIZED not in os.environ:
        build(_TARGET, LIBRARIES, variants)


@cache
def load(variant: str) -> ctypes.CDLL:
    """Load a variant; skip the test if this processor does not run it."""
    assert _TARGET is not None
    folder = Path(os.environ.get(SANITIZED, LIBRARIES))
    compile_kernels(PLAINEST, variant)
    if not library_path(folder, _TARGET, variant).exists() and SANITIZED in os.environ:
        pytest.skip(f"{variant} is not compiled with sanitizers")
    plain = load_library(library_path(LIBRARIES, _TARGET, PLAINEST))
    if missing := REQUIRED[variant] & ~Feature(plain.cpu_features()):
        pytest.skip(f"this processor has no {missing.words}")
    return load_library(library_path(folder, _TARGET, variant))
