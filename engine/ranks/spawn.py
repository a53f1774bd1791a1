"""Rank processes on this machine, which rank 0 starts."""

import os
import socket
import subprocess
from multiprocessing.connection import Connection
from typing import IO

from swiftchat.engine.api.child_process import exit_reason, stop_signal
from swiftchat.engine.api.protocol import RESTART_HINT
from swiftchat.engine.api.wire import Message
from swiftchat.errors import DeviceError
from swiftchat.errors.interpreter import python_module


def start_ranks(size: int) -> tuple[list["RankProcess"], Message]:
    """Start ranks 1 … size - 1; return them and the fields of their rendezvous.

    The rendezvous is an anonymous file that all ranks inherit. Needs no torch, so that the ranks
    start while rank 0 imports it. Raises `DeviceError` on other systems than Linux.
    """
    if not hasattr(os, "memfd_create"):
        raise DeviceError("several ranks need Linux", "omit --tp and --pp")
    rendezvous_fd = os.memfd_create("swiftchat-ranks", 0)
    ranks = [RankProcess(rank, rendezvous_fd) for rank in range(1, size)]
    return ranks, {"rendezvous_fd": rendezvous_fd}


class RankProcess:
    """A rank process on this machine; a `RankHandle`."""

    hint = RESTART_HINT

    def __init__(self, rank: int, rendezvous_fd: int) -> None:
        self.rank, self.name = rank, f"rank {rank}"
        # Not `tempfile`: it creates named files to probe folders, and would leave one behind if
        # this process were killed meanwhile.
        self._output: IO[bytes] = os.fdopen(os.memfd_create("swiftchat-rank-output"), "w+b")
        own_socket, rank_socket = socket.socketpair()
        self._process = subprocess.Popen(
            python_module(
                "swiftchat.engine.ranks.main",
                str(rank_socket.fileno()),
                str(rank),
                str(os.getpid()),
            ),
            pass_fds=[rank_socket.fileno(), rendezvous_fd],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
        )
        rank_socket.close()
        self.connection = Connection(own_socket.detach())

    def stop_signal(self) -> str | None:
        return stop_signal(self._process.pid)

    def exit_reason(self) -> str:
        try:
            status = self._process.wait(1)
        except subprocess.TimeoutExpired:
            return "has closed its connection"
        return f"ended: {exit_reason(status, self._output)}"

    def kill(self) -> None:
        self._process.kill()
