"""The processes with the images, of which programs are forked.

The first has imported the program of the terminal. The second is forked from it and has imported
the engine, too. A program must be a child of the process that asked for it, which waits for it, and
with which it may have to end. So the servers, children of that process themselves, fork siblings.
"""

import ctypes
import os
import pickle
import platform
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from tests.support.forks.fork_exec import MAX_FDS, replace_fork_exec
from tests.support.forks.own import OwnForks
from tests.support.forks.process import Image, set_command_line
from tests.support.forks.start import ROOT, Start, can_be_forked, is_program, needs_torch

_CLONE_NUMBERS = {"x86_64": 56, "aarch64": 220}  # of the system call
_CLONE_PARENT, _CLONE_CHILD_CLEARTID, _CLONE_CHILD_SETTID = 0x8000, 0x200000, 0x1000000
_PR_GET_TID_ADDRESS = 40
_LENGTH = struct.Struct("<Q")


class ForkServer:
    """`Forks` of a server, which starts at the first use; only for the process that made this.

    The server gets `environment`, because the test that uses it first may have changed its own.
    """

    def __init__(self) -> None:
        self.is_used = True
        self.environment: dict[str, str] = {}
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._images: dict[bool, _RemoteImage] | None = None  # by whether torch is imported

    def can_fork(self, command: Sequence[str], environment: dict[str, str]) -> bool:
        if not self.is_used or os.getpid() != self._pid or not is_program(command):
            return False
        with self._lock:
            if self._images is None:
                self._images = self._started()
            needed = self._images[needs_torch(command, environment)].needed
        return needed is not None and can_be_forked(command, environment, *needed)

    def _started(self) -> "dict[bool, _RemoteImage]":
        pairs = {has_torch: socket.socketpair() for has_torch in (False, True)}
        theirs = [other for _, other in pairs.values()]
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        code += "from tests.support.forks.server import main\nmain()\n"
        fds = [other.fileno() for other in theirs]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", code, *map(str, fds)],
            cwd=ROOT,
            env=self.environment,
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
        )
        for other in theirs:
            other.close()
        return {has_torch: _RemoteImage(own) for has_torch, (own, _) in pairs.items()}

    def fork(self, start: Start, fds: Sequence[int]) -> int:
        with self._lock:
            assert self._images is not None
            return self._images[needs_torch(start.command, start.environment)].fork(start, fds)


class _RemoteImage:
    """The image of a server at the other end of a socket."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server

    @cached_property
    def needed(self) -> tuple[dict[str, str], frozenset[str]] | None:
        """The environment of the image and the variables that it has read.

        None if the server cannot run here, and has said why.
        """
        try:
            return _receive(self._server)[0]
        except EOFError:
            return None

    def fork(self, start: Start, fds: Sequence[int]) -> int:
        _send(self._server, start, fds)
        pid, _ = _receive(self._server)
        assert isinstance(pid, int)
        return pid


def main() -> None:
    """Import the program and serve the client until it ends."""
    terminal, engine = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the client and the programs
    sys.path.remove(str(ROOT))
    set_command_line(sys.orig_argv, dict(os.environ))  # fails here if it is not possible
    image = Image()
    fork_sibling = _sibling_fork()
    replace_fork_exec(OwnForks(image))
    if fork_sibling() == 0:
        terminal.close()
        image.add_engine()
        _serve(engine, image, fork_sibling)
    else:
        engine.close()
        _serve(terminal, image, fork_sibling)


def _serve(client: socket.socket, image: Image, fork_sibling: Callable[[], int]) -> None:
    _send(client, (image.environment, image.variables))
    while True:
        try:
            start, fds = _receive(client)
        except (EOFError, ConnectionError):
            return
        pid = fork_sibling()
        if pid == 0:
            image.become(start, fds)
        _send(client, pid)
        for fd in fds:
            os.close(fd)


def _sibling_fork() -> Callable[[], int]:
    """Return a function like `os.fork`, but the new process is a child of this one's parent.

    Only for a process with a single thread: the handlers that libraries have registered for a fork
    do not run, and locks stay as they are. Raises `OSError` if the kernel or machine lacks it.
    """
    python = ctypes.PyDLL(None, use_errno=True)  # not `CDLL`: the new process must have the lock
    number = _CLONE_NUMBERS.get(platform.machine())
    # Where the C library keeps the thread's id, which the kernel corrects in the new process.
    thread_id = ctypes.c_void_p()
    if number is None or python.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(thread_id), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot fork siblings")
    flags = _CLONE_PARENT | _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID | signal.SIGCHLD
    zero = ctypes.c_long(0)
    address = ctypes.c_void_p(thread_id.value)
    # The order of the last two differs between machines.
    last = (address, zero) if platform.machine() == "x86_64" else (zero, address)
    arguments = (ctypes.c_long(number), ctypes.c_long(flags), zero, zero, *last)
    python.syscall.restype = ctypes.c_long

    def fork() -> int:
        python.PyOS_BeforeFork()
        pid: int = python.syscall(*arguments)
        if pid == 0:
            python.PyOS_AfterFork_Child()
        else:
            python.PyOS_AfterFork_Parent()
        if pid < 0:
            raise OSError(ctypes.get_errno(), "clone failed")
        return pid

    return fork


def _send(to: socket.socket, message: object, fds: Sequence[int] = ()) -> None:
    content = pickle.dumps(message)
    socket.send_fds(to, [_LENGTH.pack(len(content))], list(fds))
    to.sendall(content)


def _receive(source: socket.socket) -> tuple[Any, list[int]]:
    head, fds, _, _ = socket.recv_fds(source, _LENGTH.size, MAX_FDS)
    if not head:
        raise EOFError
    (size,) = _LENGTH.unpack(head)
    content = bytearray()
    while len(content) < size:
        piece = source.recv(size - len(content))
        if not piece:
            raise EOFError
        content += piece
    return pickle.loads(content), fds
