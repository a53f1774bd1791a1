"""The process with the image, of which programs are forked: `python -m tests.support.forks.server`.

A program must be a child of the process that asked for it, which waits for it, and with which it
may have to end. So the server forks twice and lets the first fork end: Linux gives the second to
the nearest ancestor that has asked for orphans, which is the client.
"""

import ctypes
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

from tests.support.forks.fork_exec import MAX_FDS
from tests.support.forks.own import own_forks
from tests.support.forks.process import Image, set_command_line
from tests.support.forks.start import ROOT, Start, can_be_forked, is_program

_PR_SET_CHILD_SUBREAPER = 36
_LENGTH = struct.Struct("<Q")


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends (Linux)."""
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1):
        raise OSError("prctl failed")


class ForkServer:
    """`Forks` of a server, which starts at the first use; only for the process that made this.

    The server gets `environment`, because the test that uses it first may have changed its own.
    """

    def __init__(self) -> None:
        self.is_used = True
        self.environment: dict[str, str] = {}
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._image: tuple[dict[str, str], frozenset[str]] | None = None

    def can_fork(self, command: Sequence[str], environment: dict[str, str]) -> bool:
        if not self.is_used or os.getpid() != self._pid or not is_program(command):
            return False
        with self._lock:
            if self._socket is None:
                self._start()
        return self._image is not None and can_be_forked(command, environment, *self._image)

    def _start(self) -> None:
        self._socket, other = socket.socketpair()
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        code += "from tests.support.forks.server import main\nmain()\n"
        command = [sys.executable, "-P", "-c", code, str(other.fileno())]
        adopt_orphans()
        with other:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=self.environment,
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
            )
        try:
            self._image, _ = _receive(self._socket)
        except EOFError:  # it cannot run here, and has said why
            self._image = None

    def fork(self, start: Start, fds: Sequence[int]) -> int:
        with self._lock:
            assert self._socket is not None
            _send(self._socket, start, fds)
            pid, _ = _receive(self._socket)
        assert isinstance(pid, int)
        return pid


def main() -> None:
    """Import the program and serve the client until it ends."""
    descriptor = int(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the client and the programs
    sys.path.remove(str(ROOT))
    set_command_line(sys.orig_argv, dict(os.environ))  # fails here if it is not possible
    image = own_forks().image
    with socket.socket(fileno=descriptor) as client:
        _send(client, (image.environment, image.variables))
        while True:
            try:
                start, fds = _receive(client)
            except (EOFError, ConnectionError):
                return
            _send(client, _fork_orphan(image, start, fds))
            for fd in fds:
                os.close(fd)


def _fork_orphan(image: Image, start: Start, fds: Sequence[int]) -> int:
    """Fork a process that the client adopts before it runs; return its id."""
    id_source, id_sink = os.pipe()
    go_source, go_sink = os.pipe()
    between = os.fork()
    if between == 0:
        pid = os.fork()
        if pid == 0:
            os.close(go_sink)
            os.read(go_source, 1)
            image.become(start, fds)
        os.write(id_sink, str(pid).encode())
        os._exit(0)
    os.waitpid(between, 0)  # a process that can be waited for has given its children away
    os.close(go_sink)
    pid = int(os.read(id_source, 32))
    for fd in (id_source, id_sink, go_source):
        os.close(fd)
    return pid


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
