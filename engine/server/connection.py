"""An engine's connection to a terminal."""

import contextlib
import os
import socket
import threading
from multiprocessing.connection import Connection

from swiftchat.engine.api import wire
from swiftchat.engine.api.wire import MAX_MESSAGE_BYTES, Message


class TerminalConnection:
    """Sends messages to and receives them from a terminal over a connected socket.

    Any thread may send, one thread receives. When sending fails, the connection is closed, and
    `receive` raises `OSError` or `EOFError`. A message longer than `max_bytes` also raises
    `OSError`.
    """

    def __init__(self, connected: socket.socket, max_bytes: int | None = None) -> None:
        self.max_bytes = max_bytes
        self._socket = connected
        self._connection = Connection(os.dup(connected.fileno()))
        self._send_lock = threading.Lock()

    @property
    def is_local(self) -> bool:
        """Whether the terminal is a process of this machine, which files may be named to."""
        return self._socket.family == socket.AF_UNIX

    def receive(self) -> Message:
        return wire.receive(self._connection, self.max_bytes)

    def receive_within(self, seconds: float) -> Message:
        """Receive a message that comes completely within so many seconds."""
        return wire.receive_within(self._connection, seconds, self.max_bytes or MAX_MESSAGE_BYTES)

    def send(self, message: Message) -> None:
        try:
            with self._send_lock:
                wire.send(self._connection, message)
        except OSError:
            self.close()  # after a timeout, part of the message may have been sent

    def close(self) -> None:
        """Shut the socket down, which wakes a thread that receives from it."""
        with contextlib.suppress(OSError):  # already closed
            self._socket.shutdown(socket.SHUT_RDWR)
