"""The processes of a model's other ranks on this machine, started by rank 0."""

import os
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import IO

from swiftchat.engine.api.child_process import how_it_ended, stop_signal
from swiftchat.engine.api.protocol import Message
from swiftchat.errors import DeviceError

_HINT = "the conversation is kept; send the message again to start the engine anew"


def start_ranks(size: int) -> tuple[list["RankProcess"], Message]:
    """Start ranks 1 … size - 1, and say where they meet: in an empty file that all have open.

    Needs no torch, so that they begin while rank 0 imports it. `DeviceError` if this is no Linux.
    """
    if not hasattr(os, "memfd_create"):
        raise DeviceError("several ranks need Linux", "leave --tp and --pp out")
    meeting = os.memfd_create("swiftchat-ranks", 0)
    return [RankProcess(rank, meeting) for rank in range(1, size)], {"meeting": meeting}


class RankProcess:
    """One of them, as `engine.ranks.supervisor.RankHandle`."""

    hint = _HINT

    def __init__(self, rank: int, meeting: int) -> None:
        self.rank, self.name = rank, f"rank {rank}"
        # Not in a temporary file: `tempfile` tries out folders first, by files with names, and this
        # process may be ended in between.
        self._output: IO[bytes] = os.fdopen(os.memfd_create("swiftchat-rank-output"), "w+b")
        ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "swiftchat.engine.ranks.main",
                str(theirs.fileno()),
                str(rank),
                str(os.getpid()),
            ],
            pass_fds=[theirs.fileno(), meeting],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
        )
        theirs.close()
        self.connection = Connection(ours.detach())

    def stop_signal(self) -> str | None:
        return stop_signal(self._process.pid)

    def obituary(self) -> str:
        try:
            status = self._process.wait(1)
        except subprocess.TimeoutExpired:
            return "has closed its connection"
        return f"ended: {how_it_ended(status, self._output)}"

    def kill(self) -> None:
        self._process.kill()
