"""A worker process on this machine: starting, watching and ending it, or leaving it."""

import contextlib
import os
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import IO

from swiftchat.engine.api import protocol, wire
from swiftchat.engine.api.address import Address
from swiftchat.engine.api.child_process import exit_reason, stop_signal
from swiftchat.engine.api.engine_log import open_log
from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.api.serve_config import ServeConfig
from swiftchat.errors import DeviceError
from swiftchat.errors.interpreter import child_folder, python_module

_EXIT_S = 2.5  # for a worker to save its KV blocks and exit before it is killed
_CRASH_S = 20.0  # for a worker that has closed its connection to exit: it may write a core file
# Consecutive checks that must find the worker stopped: the user may suspend and resume a whole
# process group.
_MAX_STOPPED_CHECKS = 3


class LocalEngine:
    """A worker process that loads the model at `path`; an `EngineConnection`.

    With `serve` it also listens for other terminals. It ends with this object, unless it stays.
    The constructor raises `DeviceError` if another engine listens at the socket, and
    `FileSystemError` if the log of an engine that stays cannot be written.

    To wake a thread that reads from `connection`, shut `socket` down: closing does not wake it.
    """

    def __init__(self, config: EngineConfig, path: Path, serve: ServeConfig | None = None) -> None:
        self.socket_path = Path(serve.socket) if serve is not None else None
        self._stays = serve is not None and serve.stays
        # Its stderr goes to a file: a pipe could block, and the last line is quoted after a crash.
        self._stderr: IO[bytes]
        if self.socket_path is not None and self._stays:
            self._stderr = open_log(self.socket_path)
        else:
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `close`)
        self.socket, worker_socket = socket.socketpair()
        passed = [worker_socket]
        if self.socket_path is not None:
            # Listening before the worker does: of two terminals that start the same engine, the
            # second one finds the socket of the first.
            passed.append(Address(path=self.socket_path).listen())
            if self._stays:
                self._stderr.truncate(0)  # not before: it might be that of a running engine
        fds = [one.fileno() for one in passed]
        # A session of its own: Ctrl-C in the terminal is for the chat, which sends `cancel`.
        self._process = subprocess.Popen(
            python_module("swiftchat.engine.worker", "--fds", *map(str, fds)),
            cwd=child_folder(),
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=self._stderr,
            stderr=self._stderr,
            start_new_session=True,
        )
        for one in passed:
            one.close()
        # Imported here, not at the top: the worker starts meanwhile.
        from multiprocessing.connection import Connection

        self.pid = self._process.pid
        self.connection = Connection(os.dup(self.socket.fileno()))
        self._stopped_checks = 0
        load = {
            "type": "load",
            "path": str(path),
            "config": config.to_wire(),
            "serve": serve and serve.to_wire(),
        }
        with contextlib.suppress(OSError):  # it has ended; the reader thread reports that
            wire.send(self.connection, load)

    def check(self, is_ready: bool, received: bool) -> DeviceError | None:
        """Return an error if a signal has stopped the worker: its connection then stays open."""
        signal_name = stop_signal(self.pid)
        self._stopped_checks = self._stopped_checks + 1 if signal_name else 0
        if self._stopped_checks < _MAX_STOPPED_CHECKS:
            return None
        return DeviceError(f"the engine process was stopped: {signal_name}", protocol.RESTART_HINT)

    def kill(self) -> None:
        self._process.kill()

    def exit_reason(self) -> DeviceError:
        """Wait for the exit, which follows the end of the connection, and return its reason.

        A worker that does not exit is killed.
        """
        try:
            status = self._process.wait(_CRASH_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        reason = exit_reason(status, self._stderr)
        return DeviceError(f"the engine process ended: {reason}", protocol.RESTART_HINT)

    def wait_ended(self) -> None:
        """Wait until the worker exits, which closing the connection causes; else kill it.

        Ctrl-C ends the wait, too: a worker that hangs must not outlive the terminal. An engine that
        stays goes on.
        """
        if self._stays:
            return
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_EXIT_S)
        finally:
            self._process.kill()  # does nothing if it has exited
            self._process.wait()

    def close(self) -> None:
        self._stderr.close()
