"""Rendezvous of ranks on several hosts, and the variables of their launchers."""

import contextlib
import socket
import threading
from typing import Any

import msgpack
import pytest

from swiftchat.engine.ranks import rendezvous
from swiftchat.engine.ranks.launch import Launch
from swiftchat.engine.ranks.rendezvous import accept_ranks, connect_to_rank_0
from swiftchat.errors import DeviceError, UsageError


def slurm_environ(
    rank: int, size: int = 2, host: str = "127.0.0.1", port: int = 0
) -> dict[str, str]:
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": str(size),
        "SLURM_LOCALID": "0",
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
    }


class Store(dict[str, bytes]):
    """A store with the interface of `torch.distributed` for the threads of a test."""

    def __init__(self) -> None:
        self._is_set = threading.Event()

    def set(self, key: str, value: bytes) -> None:
        self[key] = value
        self._is_set.set()

    def get(self, key: str) -> bytes:  # type: ignore[override]
        assert self._is_set.wait(60)
        return self[key]


def test_error_lists_ranks_that_have_not_joined() -> None:
    """One of three ranks joins, one has a wrong secret, one is missing."""
    store, launch = Store(), Launch(0, 4, 0, "127.0.0.1", 1)
    outcome: list[Any] = []

    def run_rank_0() -> None:
        try:
            outcome.append(accept_ranks(store, launch, 2))
        except DeviceError as error:
            outcome.append(error)

    rank_0 = threading.Thread(target=run_rank_0)
    rank_0.start()
    joined, address = connect_to_rank_0(store, Launch(2, 4, 1, "127.0.0.1", 1))
    assert address == "127.0.0.1"
    forged = Store()
    forged.set("rank 0", msgpack.packb([msgpack.unpackb(store.get("rank 0"))[0], "guessed"]))
    rejected, _ = connect_to_rank_0(forged, Launch(1, 4, 1, "127.0.0.1", 1))
    rank_0.join(60)
    (error,) = outcome
    assert isinstance(error, DeviceError)
    assert error.message == "ranks not joined within 2 s: 1, 3" and "MASTER_ADDR" in error.hint
    assert rejected.poll(60)
    with pytest.raises((EOFError, OSError)):
        rejected.recv_bytes()
    joined.close()


def test_peers_that_send_half_a_hello_delay_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of the silent peers would last longer than the time to join."""
    monkeypatch.setattr(rendezvous, "_HANDSHAKE_S", 600)
    store, launch = Store(), Launch(0, 2, 0, "127.0.0.1", 1)
    outcome: list[Any] = []
    rank_0 = threading.Thread(target=lambda: outcome.append(accept_ranks(store, launch, 60)))
    rank_0.start()
    port = msgpack.unpackb(store.get("rank 0"))[0]
    with contextlib.ExitStack() as peers:
        for start in (b"", b"\0", b"\0\0\0\x40", b"\0\0\0\x40half") * 4:
            peer = peers.enter_context(socket.create_connection(("127.0.0.1", port)))
            peer.sendall(start)
        connection, _ = connect_to_rank_0(store, Launch(1, 2, 0, "127.0.0.1", 1))
        rank_0.join(60)
    [(ranks, _)] = outcome
    assert [rank.rank for rank in ranks] == [1]
    connection.close()


def test_half_a_hello_ends_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_HANDSHAKE_S", 0.2)
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as peer,
    ):
        peer.sendall(b"\0\0\0\x40half")
        assert rendezvous._handshake(listening.accept()[0], "secret") is None
        assert peer.recv(1) == b"", "the connection is closed"


_TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "n1",
    "MASTER_PORT": "29500",
}
_AGENT = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2"}
_BATCH_SCRIPT = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, Launch()),
        (_TORCHRUN, Launch(3, 8, 1, "n1", 29500)),
        (_TORCHRUN | _AGENT, Launch(3, 8, 1, "n1", 29500, True, 2)),
        (slurm_environ(1, 2, "n1", 7) | _TORCHRUN, Launch(3, 8, 1, "n1", 29500)),
        (slurm_environ(1, 2, "n1", 7), Launch(1, 2, 0, "n1", 7)),
        (slurm_environ(0, 1, "n1", 7), Launch()),
        (_BATCH_SCRIPT, Launch()),
    ],
)
def test_launch_from_environment(environ: dict[str, str], expected: Launch) -> None:
    assert Launch.from_environment(environ) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RANK": "8"}, "RANK is 8, but must be from 0 to 7"),
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE is 'many'"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is missing"),
        ({"MASTER_PORT": ""}, "MASTER_PORT is ''"),
    ],
)
def test_invalid_launcher_variable_raises(change: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Launch.from_environment(_TORCHRUN | change)
