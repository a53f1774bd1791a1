"""A forked process becomes what a new interpreter would be that runs a command."""

import atexit
import builtins
import contextlib
import ctypes
import fcntl
import importlib
import io
import os
import runpy
import signal
import sys
import tempfile
import termios
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn, TextIO

from tests.support.forks.image import HiddenModules, load_engine, load_terminal
from tests.support.forks.start import PATCH, Start, added_paths, is_patch, split

_PR_SET_MM, _PR_SET_MM_MAP = 35, 14
# The numbers of these fields in /proc/PID/stat; the others are computed.
_MAP_FIELDS = {
    "start_code": 26,
    "end_code": 27,
    "start_data": 45,
    "end_data": 46,
    "start_brk": 47,
    "brk": 0,
    "start_stack": 28,
    "arg_start": 0,
    "arg_end": 0,
    "env_start": 0,
    "env_end": 0,
    "auxv": 0,
}
_NO_FILE = 0xFFFFFFFF
_kept: list[object] = []  # what must not be freed


class _MemoryMap(ctypes.Structure):
    """`struct prctl_mm_map` of Linux."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in _MAP_FIELDS),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    ]


class Image:
    """What the processes are forked from: modules, and the environment when they were imported."""

    def __init__(self) -> None:
        """Import the program of the terminal."""
        self.hidden = HiddenModules()
        self.variables = load_terminal()
        self.environment = dict(os.environ)
        self.path = list(sys.path)

    def add_engine(self) -> None:
        """Import the engine and torch."""
        self.hidden, names = load_engine()
        self.variables |= names

    def become(
        self, start: Start, fds: Sequence[int], main: Callable[[], object] | None = None
    ) -> NoReturn:
        """Run the command, or `main` instead, with these open files; then end the process."""
        code = 1
        try:
            _replace_files(fds, start.fds)
            _leave_parent(start)
            _open_streams()
            sys.argv = list(start.command)
            set_command_line(start.command, start.environment)
            code = _exit_code(main or (lambda: self._run(start)))
        except BaseException:  # noqa: BLE001  (a mistake here, which must not look like another)
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)

    def _run(self, start: Start) -> None:
        isolated, runs, rest = split(start.command)
        added = added_paths(start.environment, self.environment)
        _kept.append(sys.modules["__main__"])
        main = sys.modules["__main__"] = ModuleType("__main__")
        main.__dict__["__builtins__"] = builtins
        sys.orig_argv = list(start.command)
        sys.path[:] = [*added, *self.path]
        if any(map(is_patch, added)):
            self._patch()
        if runs == "-m":
            sys.argv = ["-m", *rest[1:]]
            if not isolated:
                sys.path.insert(0, start.folder)
            self.hidden.forget(rest[0])
            runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
        elif runs == "-c":
            sys.argv = ["-c", *rest[1:]]
            sys.path.insert(0, "")
            exec(compile(rest[0], "<string>", "exec"), main.__dict__)
        else:
            sys.argv = [runs, *rest]
            sys.path.insert(0, str(Path(runs).resolve().parent))
            main.__file__ = runs
            exec(compile(Path(runs).read_bytes(), runs, "exec"), main.__dict__)

    def _patch(self) -> None:
        """Run the code of the start, which patches modules of the program before their use."""
        self.hidden.forget_package("swiftchat")
        sys.modules.pop(PATCH, None)
        importlib.import_module(PATCH)


def set_command_line(command: Sequence[str], environment: dict[str, str]) -> None:
    """Let the system show this command line and environment, which are those of the image.

    Raises `OSError` if the kernel cannot do that.
    """
    # The fields from the third on: the second is a name.
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    fields = {name: int(stat[number - 3]) if number else 0 for name, number in _MAP_FIELDS.items()}
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype = ctypes.c_void_p
    fields["brk"] = libc.sbrk(0)
    pairs = [f"{name}={value}" for name, value in environment.items()]
    for kind, texts in (("arg", command), ("env", pairs)):
        content = b"".join(os.fsencode(text) + b"\0" for text in texts)
        memory = ctypes.create_string_buffer(content, max(len(content), 1))
        _kept.append(memory)
        fields[f"{kind}_start"] = ctypes.addressof(memory)
        fields[f"{kind}_end"] = ctypes.addressof(memory) + len(content)
    memory_map = _MemoryMap(**fields, auxv_size=0, exe_fd=_NO_FILE)
    size = ctypes.sizeof(memory_map)
    if libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, ctypes.byref(memory_map), size, 0):
        raise OSError(ctypes.get_errno(), "cannot set the command line")


def _replace_files(fds: Sequence[int], numbers: Sequence[int]) -> None:
    """Give open files these numbers, and close all others."""
    above = max(*fds, *numbers) + 1
    copies = [fcntl.fcntl(fd, fcntl.F_DUPFD, above) for fd in fds]
    for copy, number in zip(copies, numbers, strict=True):
        os.dup2(copy, number)
    begin = 0
    for number in sorted(numbers):
        if begin < number:  # for an empty range Python closes everything above
            os.closerange(begin, number)
        begin = number + 1
    os.closerange(begin, os.sysconf("SC_OPEN_MAX"))


def _leave_parent(start: Start) -> None:
    """Replace what a fork takes over from its parent and a new interpreter does not."""
    if start.new_session:
        os.setsid()
    if start.terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.umask(start.umask)
    os.chdir(start.folder)
    os.environ.clear()
    os.environ.update(start.environment)
    time.tzset()
    tempfile.tempdir = None
    atexit._clear()
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)
    sys.excepthook = sys.__excepthook__
    threading.excepthook = threading.__excepthook__
    signal.set_wakeup_fd(-1)
    ignored = {*start.ignored_signals, signal.SIGPIPE, signal.SIGXFSZ}
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        handler = signal.SIG_IGN if number in ignored else signal.SIG_DFL
        with contextlib.suppress(OSError, ValueError):  # those that the C library reserves
            if signal.getsignal(number) != handler:
                signal.signal(number, handler)
    if signal.SIGINT not in ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _open_streams() -> None:
    # The old ones may have text of the parent, which their end would write.
    _kept.extend([sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__])
    encoding, errors = sys.__stdout__.encoding, sys.__stdout__.errors
    sys.stdin = sys.__stdin__ = _stream(0, "<stdin>", "r", encoding, errors)
    sys.stdout = sys.__stdout__ = _stream(1, "<stdout>", "w", encoding, errors)
    sys.stderr = sys.__stderr__ = _stream(2, "<stderr>", "w", encoding, "backslashreplace")


def _stream(fd: int, name: str, mode: str, encoding: str, errors: str | None) -> TextIO:
    """Open a standard stream as the interpreter does."""
    unbuffered = mode == "w" and "PYTHONUNBUFFERED" in os.environ
    buffering = 0 if unbuffered else -1
    binary = open(fd, f"{mode}b", buffering, closefd=False)  # noqa: SIM115  (open to the end)
    getattr(binary, "raw", binary).name = name
    lines = fd == 2 or binary.isatty()
    stream = io.TextIOWrapper(binary, encoding, errors, "\n", lines, unbuffered)
    stream.mode = mode  # type: ignore[misc]
    return stream


def _exit_code(main: Callable[[], object]) -> int:
    """Run `main`, and return the exit code that the interpreter would end with."""
    code = 0
    try:
        main()
    except SystemExit as done:
        code = _code_of(done)
    except BaseException as error:  # noqa: BLE001  (as the interpreter would)
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except (OSError, ValueError) as error:
            if stream is sys.stdout:
                code = 120
                with contextlib.suppress(OSError):
                    print(f"Exception ignored in: {stream!r}\n{error!r}", file=sys.stderr)
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return code & 0xFF


def _code_of(done: SystemExit) -> int:
    if isinstance(done.code, int):
        return done.code
    if done.code is None:
        return 0
    print(done.code, file=sys.stderr)
    return 1
