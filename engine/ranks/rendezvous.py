"""Rendezvous of ranks on several hosts: the shared store and the connections to rank 0."""

import contextlib
import os
import secrets
import socket
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from queue import Empty, Queue
from typing import Any

import msgpack
import torch.distributed as dist

from swiftchat.engine.api import wire
from swiftchat.engine.api.address import set_tcp_options
from swiftchat.engine.ranks.launch import Launch
from swiftchat.errors import DeviceError

JOIN_TIMEOUT_S = 300.0  # for the last rank, counted from rank 0's start
# Limits for a connection before it is authenticated: time and size of the hello, number at a time.
_HANDSHAKE_S, _MAX_HANDSHAKE_BYTES, _MAX_HANDSHAKES = 5.0, 4096, 256
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
    arrived: Queue[RemoteRank] = Queue()
    with _listen(launch.host, 0) as listening:
        address, port = listening.getsockname()[:2]
        store.set(_RANK_0_KEY, msgpack.packb([port, secret]))
        accepting = threading.Thread(
            target=_accept, args=(listening, secret, arrived), name="rendezvous", daemon=True
        )
        accepting.start()
        try:
            while len(joined) < launch.size - 1:
                rank = arrived.get(timeout=max(0.001, deadline - time.monotonic()))
                if 0 < rank.rank < launch.size and rank.rank not in joined:
                    joined[rank.rank] = rank
        except Empty:
            missing = ", ".join(str(r) for r in range(1, launch.size) if r not in joined)
            raise DeviceError(
                f"ranks not joined within {timeout_s:.0f} s: {missing}", _ADDRESS_HINT
            ) from None
        finally:
            with contextlib.suppress(OSError):  # wakes the accepting thread
                listening.shutdown(socket.SHUT_RDWR)
            accepting.join(_HANDSHAKE_S)
    return [joined[rank] for rank in sorted(joined)], address


def _accept(listening: socket.socket, secret: str, arrived: "Queue[RemoteRank]") -> None:
    """Put the ranks that connect into `arrived` until the socket is shut down.

    Each peer is on a thread of its own: one that sends nothing, or only a part of its hello,
    delays no other.
    """
    handshakes = threading.Semaphore(_MAX_HANDSHAKES)

    def receive(connected: socket.socket) -> None:
        try:
            rank = _handshake(connected, secret)
        finally:
            handshakes.release()
        if rank is not None:
            arrived.put(rank)

    while True:
        handshakes.acquire()
        try:
            connected, _ = listening.accept()
        except OSError:
            return
        threading.Thread(target=receive, args=(connected,), daemon=True).start()


def _handshake(connected: socket.socket, secret: str) -> RemoteRank | None:
    """Receive a rank's hello; None, with the connection closed, if the secret does not match."""
    with contextlib.suppress(OSError):  # it has disconnected already
        set_tcp_options(connected)
    connection = Connection(connected.detach())
    hello: dict[str, Any] = {}
    with contextlib.suppress(EOFError, OSError):
        hello = wire.receive_within(connection, _HANDSHAKE_S, _MAX_HANDSHAKE_BYTES)
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
    wire.send(connection, hello)
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
