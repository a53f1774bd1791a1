"""Compiling C files as the CPU kernels are: what is compiled again, and errors.

`python -m tests.kernels` compiles the kernels for all targets.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from swiftchat.engine.cpu import compile_kernels
from swiftchat.engine.cpu.compile_kernels import (
    INTERFACE,
    PLAINEST,
    TARGETS,
    BuildError,
    build,
)

TARGET = TARGETS["linux-x86_64"]


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A folder of sources that compile fast."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "two.h").write_text("enum { TWO = 2 };\n")
    for name in INTERFACE:
        (folder / name).touch()
    (folder / "one.c").write_text("int one(void) { return 1; }\n")
    (folder / "twice.c").write_text('#include "two.h"\nint twice(int n) { return TWO * n; }\n')
    return folder


def compile_plain(tiny: Path, out: Path) -> tuple[Path, int]:
    """Compile the plain variant; return its file, and when it was written."""
    (library,) = build(TARGET, out, [PLAINEST], kernels=tiny)
    return library, library.stat().st_mtime_ns


def test_only_changes_are_compiled_again(tiny: Path, tmp_path: Path) -> None:
    first = compile_plain(tiny, tmp_path)
    assert compile_plain(tiny, tmp_path) == first
    (tiny / "two.h").write_text("enum { TWO = 3 };\n")
    second = compile_plain(tiny, tmp_path)
    assert second != first
    assert compile_plain(tiny, tmp_path) == second
    (with_flag,) = build(TARGET, tmp_path, [PLAINEST], flags=["-DX"], kernels=tiny)
    assert with_flag.stat().st_mtime_ns != second[1]
    first[0].unlink()
    assert compile_plain(tiny, tmp_path)[0].exists()


def test_failure_keeps_the_library_and_leaves_no_files(
    tiny: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    library, written = compile_plain(tiny, tmp_path)
    before = sorted(tmp_path.iterdir())
    (tiny / "bad.c").write_text("int bad(void) { return missing; }\n")
    with pytest.raises(BuildError, match=r"bad\.c for plain, linux-x86_64: .*error: .*missing"):
        compile_plain(tiny, tmp_path)
    assert (library.stat().st_mtime_ns, sorted(tmp_path.iterdir())) == (written, before)
    assert "error:" in capfd.readouterr().err


def test_processes_that_build_at_once(tiny: Path, tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from swiftchat.engine.cpu.compile_kernels import TARGETS, build\n"
        f"kernels, out = Path({str(tiny)!r}), Path({str(tmp_path)!r})\n"
        "(library,) = build(TARGETS['linux-x86_64'], out, ['plain'], kernels=kernels)\n"
        "print(library.stat().st_mtime_ns)\n"
    )
    command = [sys.executable, "-c", script]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = {process.communicate()[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(outputs) == 1


def test_unknown_variant(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="no variant sse9 of linux-x86_64; plain, avx2, avxvnni"):
        build(TARGET, tmp_path, ["sse9"])


def test_no_compiler(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_kernels, "find_spec", lambda _: None)
    with pytest.raises(BuildError, match="no compiler: pip install ziglang"):
        compile_plain(tiny, tmp_path)


def test_command_line_needs_nothing_installed(tmp_path: Path) -> None:
    script = shutil.copy(compile_kernels.__file__, tmp_path)
    run = [sys.executable, "-I", "-S", script]  # -S: no site-packages, so no compiler
    done = subprocess.run([*run, "--variant", "plain"], capture_output=True, text=True)
    assert done.stderr == "error: no compiler: pip install ziglang\n"
    done = subprocess.run([*run, "--sanitize", "address"], capture_output=True, text=True)
    assert "--out is needed with --sanitize" in done.stderr
    assert done.returncode == 2
