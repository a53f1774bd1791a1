"""The kernel tests with sanitizers: undefined behavior, memory outside of arrays, data races.

UndefinedBehaviorSanitizer comes with the ziglang wheel. AddressSanitizer and ThreadSanitizer need
gcc, whose runtimes are loaded before Python.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from swiftchat.engine.cpu.build import build, host_target, library_path
from tests.support.cpu_libraries import SANITIZED, SOURCES, VARIANT_NAMES

ROOT = SOURCES.parents[2]
TARGET = host_target()
pytestmark = [
    pytest.mark.skipif(TARGET is None, reason="no CPU kernels for this kind of machine"),
    pytest.mark.slow,
    pytest.mark.timeout(1200),
]
needs_gcc = pytest.mark.skipif(
    shutil.which("gcc") is None or sys.platform != "linux",
    reason="AddressSanitizer and ThreadSanitizer need gcc on Linux: these tests did not run",
)
FAULTS = """
#include "../kernels/common.h"
EXPORT int outside(const int *array, int n) { return array[n]; }
EXPORT int overflow(int n) { return n + 0x7fffffff; }
"""


@pytest.fixture(scope="module")
def folder(pytestconfig: pytest.Config) -> Path:
    """A folder that stays, so that only changes are compiled again."""
    assert pytestconfig.cache is not None
    return pytestconfig.cache.mkdir("swiftchat-sanitized-kernels")


def python(*arguments: str, libraries: Path, sanitizers: str) -> "subprocess.CompletedProcess[str]":
    environ = {**os.environ, SANITIZED: str(libraries)}
    if "address" in sanitizers:
        names = ("libasan.so", "libubsan.so")
        commands = [["gcc", f"-print-file-name={name}"] for name in names]
        paths = [subprocess.check_output(command, text=True).strip() for command in commands]
        # Python itself never frees some of its memory.
        environ |= {"LD_PRELOAD": ":".join(paths), "ASAN_OPTIONS": "detect_leaks=0"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("sanitizers", "variant"),
    [
        ("undefined", VARIANT_NAMES[0]),
        pytest.param("address,undefined", VARIANT_NAMES[1], marks=needs_gcc),
    ],
)
def test_kernels(sanitizers: str, variant: str, folder: Path) -> None:
    assert TARGET is not None
    libraries = folder / sanitizers.replace(",", "-")
    variants = dict.fromkeys((VARIANT_NAMES[0], variant))
    build(TARGET, libraries, list(variants), sanitizers.split(","), kernels=SOURCES)
    done = python(
        *("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"),
        *("tests/engine/cpu", "-k", variant),
        *(
            f"--ignore=tests/engine/cpu/test_{name}.py"
            for name in ("build", "library", "sanitizers")
        ),
        libraries=libraries,
        sanitizers=sanitizers,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert " passed" in done.stdout


@pytest.mark.parametrize(
    ("sanitizers", "fault", "report"),
    [
        ("undefined", "overflow(1)", "signed integer overflow"),
        pytest.param(
            "address,undefined", "overflow(1)", "signed integer overflow", marks=needs_gcc
        ),
        pytest.param(
            "address,undefined", "outside(array, 4)", "heap-buffer-overflow", marks=needs_gcc
        ),
    ],
)
def test_faults_are_found(sanitizers: str, fault: str, report: str, tmp_path: Path) -> None:
    assert TARGET is not None
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "faults.c").write_text(FAULTS)
    shutil.copytree(SOURCES, tmp_path / "kernels", ignore=lambda *_: ["*.c"])
    build(TARGET, tmp_path, [VARIANT_NAMES[0]], sanitizers.split(","), kernels=tmp_path / "faults")
    script = (
        "import ctypes, torch\n"
        f"library = ctypes.CDLL({str(library_path(tmp_path, TARGET, VARIANT_NAMES[0]))!r})\n"
        "array = ctypes.c_void_p(torch.zeros(4, dtype=torch.int32).clone().data_ptr())\n"
        "print('before', flush=True)\n"
        f"library.{fault}\n"
        "print('after')\n"
    )
    done = python("-c", script, libraries=tmp_path, sanitizers=sanitizers)
    assert done.stdout == "before\n"
    assert done.returncode != 0
    assert report in done.stderr


@needs_gcc
def test_thread_pool_has_no_data_races(tmp_path: Path) -> None:
    stress = Path(__file__).with_name("pool_stress.c")
    sources = [stress, SOURCES / "pool.c", SOURCES / "thread_count.c"]
    program = tmp_path / "stress"
    command = ["gcc", "-std=c11", "-O1", "-g", "-fsanitize=thread", *map(str, sources)]
    subprocess.run([*command, "-o", str(program), "-lpthread"], check=True)
    # ThreadSanitizer of older gcc does not run with the address randomization of newer kernels.
    without_randomization = ["setarch", "-R"] if shutil.which("setarch") else []
    for num_threads in (2, 3):
        run = [*without_randomization, str(program), str(num_threads), "20", "1"]
        done = subprocess.run(run, capture_output=True, text=True, timeout=300)
        assert (done.returncode, done.stdout) == (0, "0 errors\n"), done.stderr
