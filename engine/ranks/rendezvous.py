"""Rendezvous of ranks on several hosts: the shared store and the connections to rank 0."""

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
from swiftchat.engine.api.address import set_tcp_options
from swiftchat.engine.ranks.launch import Launch
from swiftchat.errors import DeviceError

JOIN_TIMEOUT_S = 300.0  # for the last rank, counted from rank 0's start
_HANDSHAKE_S, _MAX_HANDSHAKE_BYTES = 5.0, 4096
_RANK_0_KEY = "rank 0"
_LOST_HINT = (
    "see the rank's own log for the cause; the conversation is kept: restart the engine, "
    "then send the message again"
)
_ADDRESS_HINT = (
    "MASTER_ADDR must be a name or an address of rank 0's host that all hosts reach, "
    "and MASTER_PORT a free port there"
)


def open_store(launch: Launch, timeout_s: float = JOIN_TIMEOUT_S) -> Any:
    """Connect to the ranks' `torch.distributed` store; rank 0 creates it unless torchrun does.

    A created store listens on MASTER_ADDR only. Raises `DeviceError` if it cannot be reached.
    """
    stores: Any = dist  # torch's stubs lack the stores
    options: dict[str, Any] = {"timeout": timedelta(seconds=timeout_s), "wait_for_workers": False}
    try:
        if launch.rank == 0 and not launch.has_store:
            listening = _listen(launch.host, launch.port)
            options.update(is_master=True, master_listen_fd=listening.detach(), use_libuv=False)
        store = stores.TCPStore(launch.host, launch.port, **options)
    except (OSError, RuntimeError) as error:
        raise DeviceError(
            f"no rendezvous at {launch.host}:{launch.port}: {_first_line(error)}", _ADDRESS_HINT
        ) from error
    return stores.PrefixStore(f"swiftchat/{launch.attempt}", store)


@dataclass
class RemoteRank:
    """A rank that a launcher has started, possibly on another host; a `RankHandle`."""

    rank: int
    local_rank: int
    host: str
    connection: Connection
    hint: str = _LOST_HINT

    @property
    def name(self) -> str:
        return f"rank {self.rank} on {self.host}"

    def stop_signal(self) -> str | None:
        return None  # not visible from here; missing heartbeats show it

    def exit_reason(self) -> str:
        return "has disconnected"

    def kill(self) -> None:
        """Close the connection, which makes the rank exit."""
        with (
            socket.socket(fileno=os.dup(self.connection.fileno())) as connected,
            contextlib.suppress(OSError),  # already closed
        ):
            connected.shutdown(socket.SHUT_RDWR)


def accept_ranks(
    store: Any, launch: Launch, timeout_s: float = JOIN_TIMEOUT_S
) -> tuple[list[RemoteRank], str]:
    """Accept the connections of all other ranks; called by rank 0.

    Return the ranks in order, and the address of the interface that they connected to. Raises
    `DeviceError` with the numbers of the ranks that have not joined in time.
    """
    secret, deadline = secrets.token_hex(16), time.monotonic() + timeout_s
    joined: dict[int, RemoteRank] = {}
    with _listen(launch.host, 0) as listening:
        address, port = listening.getsockname()[:2]
        store.set(_RANK_0_KEY, msgpack.packb([port, secret]))
        while len(joined) < launch.size - 1:
            listening.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                connected, _ = listening.accept()
            except TimeoutError:
                missing = ", ".join(str(r) for r in range(1, launch.size) if r not in joined)
                raise DeviceError(
                    f"ranks not joined within {timeout_s:.0f} s: {missing}", _ADDRESS_HINT
                ) from None
            rank = _handshake(connected, secret)
            if rank is not None and 0 < rank.rank < launch.size and rank.rank not in joined:
                joined[rank.rank] = rank
    return [joined[rank] for rank in sorted(joined)], address


def _handshake(connected: socket.socket, secret: str) -> RemoteRank | None:
    """Receive a rank's hello; None, with the connection closed, if the secret does not match."""
    set_tcp_options(connected)
    connection = Connection(connected.detach())
    hello: dict[str, Any] = {}
    with contextlib.suppress(EOFError, OSError):
        if connection.poll(_HANDSHAKE_S):
            hello = protocol.receive(connection, _MAX_HANDSHAKE_BYTES)
    match hello:
        case {
            "secret": str() as received,
            "rank": int() as rank,
            "local_rank": int() as local_rank,
            "host": str() as host,
        }:
            if secrets.compare_digest(received.encode(), secret.encode()):
                return RemoteRank(rank, local_rank, host, connection)
    connection.close()
    return None


def connect_to_rank_0(store: Any, launch: Launch) -> tuple[Connection, str]:
    """Return the connection to rank 0 and the address of this rank's interface.

    Raises `DeviceError` if rank 0 cannot be reached.
    """
    try:
        port, secret = msgpack.unpackb(store.get(_RANK_0_KEY))
        connected = socket.create_connection((launch.host, port), JOIN_TIMEOUT_S)
    except (OSError, RuntimeError, ValueError) as error:
        raise DeviceError(
            f"cannot reach rank 0 at {launch.host}: {_first_line(error)}", _ADDRESS_HINT
        ) from error
    connected.settimeout(None)
    set_tcp_options(connected)
    address = connected.getsockname()[0]
    connection = Connection(connected.detach())
    hello = {
        "type": "hello",
        "secret": secret,
        "rank": launch.rank,
        "local_rank": launch.local_rank,
        "host": os.uname().nodename,
    }
    protocol.send(connection, hello)
    return connection, address


def _listen(host: str, port: int) -> socket.socket:
    """Listen on the address of `host` only; raises `DeviceError` if it is not this host's."""
    try:
        family, _, _, _, resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(resolved[:2], family=family, backlog=512)
    except OSError as error:
        reason = f"rank 0 cannot listen at {host}: {error.strerror or error}"
        raise DeviceError(reason, _ADDRESS_HINT) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
