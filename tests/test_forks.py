"""Forked programs do what started ones do."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.forks import own
from tests.support.forks.install import real_starts
from tests.support.forks.process import Image
from tests.support.forks.start import ROOT, SCRIPTS, can_be_forked, needs_torch
from tests.support.program import patched
from tests.support.worker_processes import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs are forked on Linux")

WORKER = (sys.executable, "-P", "-m", "swiftchat.engine.worker")
IS_FORKED = "import sys; print('tests.support.forks.process' in sys.modules)"


def run(command: list[str], **settings: object) -> tuple[int, str, str]:
    done = subprocess.run(command, capture_output=True, text=True, input="text\n", **settings)  # type: ignore[call-overload]
    return done.returncode, done.stdout, done.stderr


def test_a_program_is_forked_unless_it_must_be_started() -> None:
    command = patched(IS_FORKED, "--version")
    assert run(command)[1].startswith("True")
    with real_starts():
        assert run(command)[1].startswith("False")


def test_a_changed_environment_of_the_first_test_is_not_that_of_the_image(tmp_path: Path) -> None:
    """Modules that are injected into one program would be in all."""
    (tmp_path / "injected.py").touch()
    code = (
        "import os, subprocess, sys\n"
        "from tests.support.forks.install import install\n"
        f"install()\nos.environ['PYTHONPATH'] += os.pathsep + {str(tmp_path)!r}\n"
        f"command = {patched(IS_FORKED, '--version')!r}\n"
        "subprocess.run(command)\n"
        f"os.environ['PYTHONPATH'] = {str(ROOT)!r}\n"
        "subprocess.run(command)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    lines = run([sys.executable, "-c", code], env=environment)[1].splitlines()
    assert [line for line in lines if line in ("True", "False")] == ["False", "True"]


@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "-m", "swiftchat.chat", "--version"],
        [sys.executable, "-m", "swiftchat.chat", "--nonsense"],
        [sys.executable, "-P", "-m", "swiftchat.engine.ranks.main"],
        patched("import sys; print(sys.argv, sys.orig_argv, __name__, sys.stdin.read())", "--help"),
        patched("import sys; print(sys.path, [type(s) for s in (sys.stdin, sys.stdout)])"),
        patched(
            "import sys; print(sys.stdout.encoding, sys.stdout.line_buffering, sys.stdin.name)"
        ),
        patched("import os; print(os.getcwd(), {**os.environ}, os.listdir('/proc/self/fd'))"),
        patched("import signal; print([signal.getsignal(n) for n in signal.valid_signals()])"),
        patched("raise KeyError('unforeseen')"),
        patched("raise KeyboardInterrupt"),
        patched("raise SystemExit('a text')"),
        patched("import atexit; atexit.register(print, 'at the end'); print(end='no newline')"),
        patched(
            "import threading, time\n"
            "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\n"
            "raise SystemExit(7)"
        ),
    ],
    ids=lambda command: command[2][:30] + command[-1][-20:],
)
def test_the_end_and_the_output_are_those_of_a_started_program(
    command: list[str], tmp_path: Path
) -> None:
    command = [*command, "--version"] if command[1] == "-c" else command
    # Not that of C, to which libraries of the tests may have added variables.
    settings = {"cwd": tmp_path, "env": {**os.environ}}
    forked = run(command, **settings)
    with real_starts():
        assert run(command, **settings) == forked


def test_output_that_nobody_reads_ends_a_program_alike() -> None:
    command = patched("print('lost'); raise SystemExit(3)")
    source, sink = os.pipe()
    os.close(source)
    forked = subprocess.run(command, stdout=sink, stderr=subprocess.DEVNULL)
    with real_starts():
        started = subprocess.run(command, stdout=sink, stderr=subprocess.DEVNULL)
    os.close(sink)
    assert forked.returncode == started.returncode != 3


def test_torch_is_imported_when_it_is_used() -> None:
    code = "import sys; print('torch' in sys.modules); import torch; print(torch.ones(3).sum())"
    assert run(patched(code, "--version"))[1].startswith("False\ntensor(3.)\n")


def test_a_forked_process_is_a_child_with_its_own_command_and_files(tmp_path: Path) -> None:
    own, other = socket.socketpair()
    command = [*WORKER, "--fds", str(other.fileno())]
    environment = {**os.environ, "OF_THIS_TEST": "a value"}
    with (
        own,
        other,
        subprocess.Popen(
            command,
            pass_fds=[other.fileno()],
            cwd=tmp_path,
            env=environment,
            start_new_session=True,
        ) as worker,
    ):
        process = psutil.Process(worker.pid)
        wait_until(lambda: process.cmdline() == command)
        assert process.ppid() == os.getpid()
        assert process.environ() == environment
        assert process.cwd() == str(tmp_path)
        assert os.getsid(worker.pid) == worker.pid
        worker.terminate()
        assert worker.wait(60) == -signal.SIGTERM


def test_a_forked_process_gets_the_umask_and_ignored_signals() -> None:
    code = "import os, signal; print(os.umask(0), signal.getsignal(signal.SIGUSR1).name)"
    old, handler = os.umask(0o027), signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        assert run(patched(code, "--version"))[1].startswith(f"{0o027} SIG_IGN\n")
    finally:
        os.umask(old)
        signal.signal(signal.SIGUSR1, handler)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"XDG_DATA_HOME": "/elsewhere", "NO_COLOR": "1", "TERM": "dumb"}, True),
        ({"OMP_NUM_THREADS": "7"}, False),
        ({"GOMP_SPINCOUNT": "10000"}, True),
        ({"LC_ALL": "C"}, False),
        ({"CUDA_VISIBLE_DEVICES": ""}, False),
        ({"PYTHONUNBUFFERED": "1"}, False),
        ({"READ_BY_A_MODULE": "1"}, False),
        ({"PYTHONPATH": "/usr"}, False),
        ({"PYTHONPATH": str(ROOT)}, True),
    ],
)
def test_variables_that_are_read_at_the_start_need_a_start(
    change: dict[str, str], expected: bool
) -> None:
    image = {"PATH": "/bin", "OMP_NUM_THREADS": "1"}
    assert can_be_forked(WORKER, image | change, image, {"READ_BY_A_MODULE"}) is expected


def test_code_of_the_start_patches_modules_before_their_use(tmp_path: Path) -> None:
    """Also functions that other modules import by their names."""
    patch = "import swiftchat.errors as errors\nerrors.UsageError = KeyError\n"
    (tmp_path / "sitecustomize.py").write_text(patch)
    code = f"{IS_FORKED}\nfrom swiftchat.chat.options import config\nprint(config.UsageError)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert run(patched(code, "--version"), env=environment)[1].startswith(
        "True\n<class 'KeyError'>\n"
    )
    (tmp_path / "torch.py").touch()
    assert run(patched(code, "--version"), env=environment)[1].startswith("False\n")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (WORKER, True),
        ([SCRIPTS[1]], True),
        ([sys.executable, "-m", "swiftchat.chat", "--device", "cpu"], True),
        ([sys.executable, "-m", "swiftchat.chat", "doctor"], True),
        (patched("import torch"), True),
        ([sys.executable, "-m", "swiftchat.chat", "ps"], False),
        ([sys.executable, "-P", "-m", "swiftchat.tokenizer.template.worker"], False),
        (patched("print()"), False),
    ],
)
def test_programs_of_engines_have_torch(command: list[str], expected: bool) -> None:
    command = command if command[0] == sys.executable else [sys.executable, *command]
    assert needs_torch(command, {}) is expected
    assert needs_torch(command, {"SWIFTCHAT_DEVICE": "cpu"})


def test_a_program_that_is_not_recognized_imports_torch() -> None:
    code = "import sys; import importlib; print(importlib.import_module('torch').ones(3).sum())"
    assert not needs_torch(patched(code), {})
    assert run(patched(code, "--version"))[1].startswith("tensor(3.)\n")


def test_a_renderer_of_templates_is_forked_where_its_limit_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = (sys.executable, "-P", "-m", "swiftchat.tokenizer.template.worker")
    image = Image.__new__(Image)
    image.environment, image.variables = {}, frozenset()
    for size_bytes, expected in ((800 << 20, True), (1000 << 20, False)):
        monkeypatch.setattr(own, "_address_space_bytes", lambda size=size_bytes: size)
        monkeypatch.setattr(own, "_has_foreign_threads", lambda: False)
        assert own.OwnForks(image).can_fork(command, {}) is expected


def test_a_program_forks_others_until_torch_has_threads() -> None:
    """A rank is started by a worker that has imported torch, and has not computed yet."""
    code = (
        "import subprocess, torch\n"
        f"command = {patched(IS_FORKED, '--version')!r}\n"
        "subprocess.run(command)\n"
        "torch.set_num_threads(2)\n"
        "torch.ones(1 << 20).exp()\n"
        "subprocess.run(command)\n"
    )
    lines = run(patched(code, "--version"))[1].splitlines()
    assert [line for line in lines if line in ("True", "False")] == ["True", "False"]


def test_other_programs_are_started(tmp_path: Path) -> None:
    for command in (
        [sys.executable, "-c", "pass"],
        [sys.executable, "-I", "-S", str(tmp_path / "file.py")],
        [sys.executable, "-m", "pytest"],
        ["/bin/true", "-m", "swiftchat.chat"],
    ):
        assert not can_be_forked(command, {}, {}, ())
