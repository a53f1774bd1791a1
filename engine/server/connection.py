"""A terminal, seen from the engine: who asks for answers over a connection."""

import contextlib
import os
import socket
import threading
from multiprocessing.connection import Connection

from swiftchat.engine.api import protocol
from swiftchat.engine.api.protocol import Message


class Terminal:
    """One end of a socket, whose other end is a terminal.

    Any thread may send, one receives. A terminal that cannot be reached is closed, and then
    `receive` raises `OSError` or `EOFError`. Longer messages than `most_bytes` are not received.
    """

    def __init__(self, connected: socket.socket, most_bytes: int | None = None) -> None:
        self.most_bytes = most_bytes
        self._socket = connected
        self._connection = Connection(os.dup(connected.fileno()))
        self._sending = threading.Lock()

    def receive(self) -> Message:
        return protocol.receive(self._connection, self.most_bytes)

    def send(self, message: Message) -> None:
        try:
            with self._sending:
                protocol.send(self._connection, message)
        except OSError:
            self.close()  # it may only be stuck, in the middle of a message

    def close(self) -> None:
        """Part with it, whatever it is doing; whoever receives from it wakes up."""
        with contextlib.suppress(OSError):  # it was gone
            self._socket.shutdown(socket.SHUT_RDWR)
