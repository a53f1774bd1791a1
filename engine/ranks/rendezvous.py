"""How ranks on several hosts find rank 0, and how it speaks with them."""

import contextlib
import os
import secrets
import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import msgpack
import torch.distributed as dist

from swiftchat.engine.api import protocol
from swiftchat.engine.api.address import answer_at_once
from swiftchat.engine.ranks.launch import Launch
from swiftchat.errors import DeviceError

MEET_S = 300.0  # from the first rank that is there to the last
_HELLO_S, _HELLO_BYTES = 5.0, 4096
_HINT = (
    "what it wrote where it was started says more; the conversation is kept: start the engine "
    "again, then send the message again"
)
_ADDRESS_HINT = (
    "MASTER_ADDR must be a name or an address of rank 0's host that all hosts reach, "
    "and MASTER_PORT a free port there"
)


def open_store(launch: Launch, timeout_s: float = MEET_S) -> Any:
    """The store of `torch.distributed` in which the ranks meet; `DeviceError` if it is not there.

    torchrun's, or one on rank 0 that listens on MASTER_ADDR alone.
    """
    stores: Any = dist  # whose stubs do not have them
    options: dict[str, Any] = {"timeout": timedelta(seconds=timeout_s), "wait_for_workers": False}
    try:
        if launch.rank == 0 and not launch.has_store:
            listening = _listen(launch.host, launch.port)
            options.update(is_master=True, master_listen_fd=listening.detach(), use_libuv=False)
        store = stores.TCPStore(launch.host, launch.port, **options)
    except (OSError, RuntimeError) as error:
        words = str(error).strip().splitlines()[0]
        raise DeviceError(
            f"no meeting at {launch.host}:{launch.port}: {words}", _ADDRESS_HINT
        ) from error
    return stores.PrefixStore(f"swiftchat/{launch.attempt}", store)


@dataclass
class RemoteRank:
    """A rank that was started elsewhere, as `engine.ranks.supervisor.RankHandle`."""

    rank: int
    local_rank: int
    host: str
    connection: Connection
    hint: str = _HINT

    @property
    def name(self) -> str:
        return f"rank {self.rank} on {self.host}"

    def stop_signal(self) -> str | None:
        return None  # it then says nothing, which is noticed

    def obituary(self) -> str:
        return "is gone: its connection ended"

    def kill(self) -> None:
        """Hang up, which ends it."""
        with (
            socket.socket(fileno=os.dup(self.connection.fileno())) as connected,
            contextlib.suppress(OSError),  # it was gone
        ):
            connected.shutdown(socket.SHUT_RDWR)


def gather(store: Any, launch: Launch, timeout_s: float = MEET_S) -> tuple[list[RemoteRank], str]:
    """Wait for all other ranks, as rank 0; they by rank, and the address at which this one is.

    Raises `DeviceError` with the numbers of those that do not come in time.
    """
    secret, deadline = secrets.token_hex(16), time.monotonic() + timeout_s
    found: dict[int, RemoteRank] = {}
    with _listen(launch.host, 0) as listening:
        address, port = listening.getsockname()[:2]
        store.set("rank 0", msgpack.packb([port, secret]))
        while len(found) < launch.size - 1:
            listening.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                connected, _ = listening.accept()
            except TimeoutError:
                missing = [str(r) for r in range(1, launch.size) if r not in found]
                raise DeviceError(
                    f"no word from ranks {', '.join(missing)} in {timeout_s:.0f} s", _ADDRESS_HINT
                ) from None
            rank = _greeted(connected, secret)
            if rank is not None and 0 < rank.rank < launch.size and rank.rank not in found:
                found[rank.rank] = rank
    return [found[rank] for rank in sorted(found)], address


def _greeted(connected: socket.socket, secret: str) -> RemoteRank | None:
    """The rank that this is, if it is one."""
    answer_at_once(connected)
    connection = Connection(connected.detach())
    hello: dict[str, Any] = {}
    with contextlib.suppress(EOFError, OSError):
        if connection.poll(_HELLO_S):
            hello = protocol.receive(connection, _HELLO_BYTES)
    match hello:
        case {
            "secret": str() as told,
            "rank": int() as rank,
            "local_rank": int() as local_rank,
            "host": str() as host,
        }:
            if secrets.compare_digest(told.encode(), secret.encode()):
                return RemoteRank(rank, local_rank, host, connection)
    connection.close()
    return None


def join(store: Any, launch: Launch) -> tuple[Connection, str]:
    """Report to rank 0; the connection to it, and the address at which this rank reaches it.

    Raises `DeviceError` if there is none.
    """
    try:
        port, secret = msgpack.unpackb(store.get("rank 0"))
        connected = socket.create_connection((launch.host, port), MEET_S)
    except (OSError, RuntimeError, ValueError) as error:
        words = str(error).strip().splitlines()[0]
        raise DeviceError(
            f"rank 0 cannot be reached at {launch.host}: {words}", _ADDRESS_HINT
        ) from error
    connected.settimeout(None)
    answer_at_once(connected)
    address = connected.getsockname()[0]
    connection = Connection(connected.detach())
    who = {"rank": launch.rank, "local_rank": launch.local_rank, "host": os.uname().nodename}
    protocol.send(connection, {"type": "hello", "secret": secret, **who})
    return connection, address


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens at that name's address alone; `DeviceError` if not this host's."""
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(place[:2], family=family, backlog=512)
    except OSError as error:
        words = f"rank 0 cannot listen at {host}: {error.strerror or error}"
        raise DeviceError(words, _ADDRESS_HINT) from error
