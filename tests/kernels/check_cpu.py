"""The CPU kernels compile for all targets, and sanitizers find no fault in their tests.

Sanitizers report undefined behavior, memory outside of arrays, and data races. They are gcc's,
whose runtimes are loaded before Python. `python -m tests.kernels` runs these tests.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from swiftchat.engine.cpu.compile_kernels import (
    PLAINEST,
    TARGETS,
    VARIANTS,
    build,
    host_target,
    library_path,
)
from tests.support.native.libraries import SANITIZED, SOURCES, VARIANT_NAMES

ROOT = SOURCES.parents[2]
TARGET = host_target()
VARIANT = VARIANT_NAMES[1] if TARGET else ""
SANITIZERS = ("address", "undefined")
pytestmark = [
    pytest.mark.skipif(TARGET is None, reason="no CPU kernels for this kind of machine"),
    pytest.mark.timeout(3600),
]
needs_gcc = pytest.mark.skipif(
    shutil.which("gcc") is None or sys.platform != "linux",
    reason="the sanitizers need gcc on Linux: these tests did not run",
)
# Code depends on the system or on the processor, hardly on both, so the targets of a processor
# share its variants; avx512 has no line of its own. None is optimized: what a compiler refuses or
# warns of does not depend on it. This machine's variants are compiled optimized for all tests.
COMPILED = {
    "linux-x86_64": ["plain", "avxvnni", "avx512bf16"],
    "macos-x86_64": ["avx2"],
    "linux-aarch64": ["plain", "i8mm"],
    "macos-aarch64": ["neon"],
}
FAULTS = """
#include "common.h"
EXPORT int outside(const int *array, int n) { return array[n]; }
EXPORT int overflow(int n) { return n + 0x7fffffff; }
"""


def python(*arguments: str, libraries: Path) -> "subprocess.CompletedProcess[str]":
    commands = [["gcc", f"-print-file-name=lib{name}.so"] for name in ("asan", "ubsan")]
    paths = [subprocess.check_output(command, text=True).strip() for command in commands]
    # Python itself never frees some of its memory.
    sanitizers = {"LD_PRELOAD": ":".join(paths), "ASAN_OPTIONS": "detect_leaks=0"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **sanitizers, SANITIZED: str(libraries)},
        capture_output=True,
        text=True,
    )


@needs_gcc
def test_kernels(tmp_path: Path) -> None:
    """AVX2 runs everywhere and shares with the other variants all but the innermost loops."""
    assert TARGET is not None
    build(TARGET, tmp_path, [VARIANT], SANITIZERS, kernels=SOURCES)
    done = python(
        *("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"),
        *("tests/engine/cpu", "-k", VARIANT, "-m", "not slow"),
        libraries=tmp_path,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert " passed" in done.stdout


@needs_gcc
@pytest.mark.parametrize(
    ("fault", "report"),
    [
        ("overflow(1)", "signed integer overflow"),
        ("outside(array, 4)", "heap-buffer-overflow"),
    ],
)
def test_faults_are_found(fault: str, report: str, tmp_path: Path) -> None:
    assert TARGET is not None
    shutil.copytree(SOURCES, tmp_path / "faults", ignore=shutil.ignore_patterns("*.c"))
    (tmp_path / "faults" / "faults.c").write_text(FAULTS)
    build(TARGET, tmp_path, [PLAINEST], SANITIZERS, kernels=tmp_path / "faults")
    script = (
        "import ctypes, torch\n"
        f"library = ctypes.CDLL({str(library_path(tmp_path, TARGET, PLAINEST))!r})\n"
        "array = ctypes.c_void_p(torch.zeros(4, dtype=torch.int32).clone().data_ptr())\n"
        "print('before', flush=True)\n"
        f"library.{fault}\n"
        "print('after')\n"
    )
    done = python("-c", script, libraries=tmp_path)
    assert done.stdout == "before\n"
    assert done.returncode != 0
    assert report in done.stderr


@needs_gcc
def test_thread_pool_has_no_data_races(tmp_path: Path) -> None:
    stress = ROOT / "tests" / "engine" / "cpu" / "pool_stress.c"
    sources = [stress, SOURCES / "pool.c", SOURCES / "thread_count.c"]
    program = tmp_path / "stress"
    command = ["gcc", "-std=c11", "-O1", "-g", "-fsanitize=thread", *map(str, sources)]
    subprocess.run([*command, "-o", str(program), "-lpthread"], check=True)
    # ThreadSanitizer of older gcc does not run with the address randomization of newer kernels.
    without_randomization = ["setarch", "-R"] if shutil.which("setarch") else []
    for num_threads in (2, 3):
        run = [*without_randomization, str(program), str(num_threads), "20", "1"]
        done = subprocess.run(run, capture_output=True, text=True, timeout=1800)
        assert (done.returncode, done.stdout) == (0, "0 errors\n"), done.stderr


def test_every_variant_is_compiled_for_some_target() -> None:
    assert set(COMPILED) == set(TARGETS)
    for architecture, variants in VARIANTS.items():
        targets = [name for name in TARGETS if name.endswith(architecture)]
        compiled = {variant for name in targets for variant in COMPILED[name]}
        assert compiled | {"avx512"} >= {variant.name for variant in variants}


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_compiles_without_warnings(name: str, tmp_path: Path) -> None:
    target, variants = TARGETS[name], COMPILED[name]
    flags = ["-Werror", "-O0", "-fno-sanitize=all"]  # zig's -O0 adds sanitizers
    libraries = build(target, tmp_path, variants, flags=flags, kernels=SOURCES)
    assert libraries == [library_path(tmp_path, target, variant) for variant in variants]
    magic = {".so": b"\x7fELF", ".dylib": b"\xcf\xfa\xed\xfe"}[target.suffix]
    for library in libraries:
        content = library.read_bytes()
        assert content.startswith(magic)
        assert b"run_program" in content
