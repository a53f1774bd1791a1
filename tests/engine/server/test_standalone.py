"""Ranks of several hosts: two torchruns on this machine, and two network namespaces of it."""

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from swiftchat.engine.api.protocol import Tokens
from swiftchat.engine.comm.communicator import RankPlacement
from swiftchat.engine.ranks.launch import Launch
from swiftchat.engine.ranks.rendezvous import accept_ranks, connect_to_rank_0
from swiftchat.engine.server.standalone import check_same_model, rank_placement
from swiftchat.errors import BadModelFile, DeviceError, UsageError
from tests.support.remote_engine import ConnectedClient, chat_model_folder
from tests.support.worker_processes import (
    ENDLESS,
    GREEDY,
    assert_equals_single_rank,
    collect,
    has_ended,
    wait_until,
)

REPORTED_S = 5.0
START_S = 90.0
ENGINE = ("-m", "swiftchat.engine.worker")
ON_CPU = ("--device", "cpu", "--dtype", "float32", "--threads", "1")

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="several ranks need Linux"),
    pytest.mark.timeout(150),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    return chat_model_folder(path, max_position_embeddings=50000)


class Hosts:
    """Processes that were started as several hosts' would be; each has a log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, command: Sequence[str], **environ: str) -> None:
        number = len(self.processes)
        with self._log(number).open("wb") as log:
            process = subprocess.Popen(
                [*command],
                env=self._environ() | environ,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        self.processes.append(process)

    def said(self, number: int = 0) -> str:
        return self._log(number).read_text()

    def address(self) -> str:
        """Where terminals attach, once rank 0 says so."""
        found: list[str] = []

        def is_said() -> bool:
            found[:] = re.findall(r"--connect (\S+)", self.said())
            assert self.processes[0].poll() is None, self.said()
            return bool(found)

        wait_until(is_said, START_S)
        return found[0]

    def rank_of(self, number: int) -> int:
        """The process of the rank that torchrun has started on a host."""
        (rank,) = psutil.Process(self.processes[number].pid).children()
        return rank.pid

    def swiftchat(self, *options: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "swiftchat.chat", *options],
            env=self._environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def end(self) -> None:
        for process in self.processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process.pid).children():
                    child.kill()
            process.kill()
            process.wait()

    def _log(self, number: int) -> Path:
        return self.folder / f"host {number}.log"

    def _environ(self) -> dict[str, str]:
        kinds = ("STATE", "CACHE", "DATA", "CONFIG")
        places = {f"XDG_{kind}_HOME": str(self.folder / kind) for kind in kinds}
        return os.environ | places


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    running = Hosts(tmp_path)
    yield running
    running.end()


@pytest.fixture(scope="module")
def two(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Two torchruns with a rank each; rank 0 serves terminals on loopback."""
    running, port = Hosts(tmp_path_factory.mktemp("two")), free_port()
    for number in range(2):
        running.start(
            [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--nnodes",
                "2",
                "--nproc-per-node",
                "1",
                "--node-rank",
                str(number),
                "--master-addr",
                "127.0.0.1",
                "--master-port",
                str(port),
                *ENGINE,
                str(folder),
                *ON_CPU,
            ]
        )
    yield running
    running.end()


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def attached(hosts: Hosts) -> ConnectedClient:
    address = hosts.address()
    state = hosts.folder / "STATE" / "swiftchat"
    return ConnectedClient(address, state / f"engine-{address.rpartition(':')[2]}.token")


def test_two_hosts_answer_as_one_process(two: Hosts, folder: Path) -> None:
    with attached(two) as client:
        shown: list[str] = []
        info = client.wait_ready(lambda progress: shown.append(progress.label))
        assert info.tp == 2
        assert shown
        assert_equals_single_rank(client, folder, 20)


def test_a_terminal_that_leaves_ends_only_its_answers(two: Hosts) -> None:
    with attached(two) as client:
        expected = collect(client.generate([9, 9], GREEDY))[0]
    with attached(two) as leaves:
        next(iter(leaves.generate([9, 9], ENDLESS)))
    with attached(two) as client:
        wait_until(lambda: client.stats()["running"] == 0)
        assert collect(client.generate([9, 9], GREEDY))[0] == expected


def test_the_ranks_listen_on_the_masters_interface_alone(two: Hosts) -> None:
    ranks = [psutil.Process(two.rank_of(number)) for number in range(2)]
    sockets = [found for rank in ranks for found in rank.net_connections("inet")]
    listening = {found.laddr.ip for found in sockets if found.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}


def test_a_rank_killed_on_the_other_host_is_named(two: Hosts) -> None:
    """What was said until then is kept, and all are gone."""
    address = two.address()
    options = ["--connect", address, "--temp", "0", "--stream-json", "-p", "hello"]
    with attached(two) as client, two.swiftchat(*options) as chat:
        client.wait_ready()
        events = iter(client.generate([5], ENDLESS))
        assert chat.stdout is not None and chat.stderr is not None
        assert json.loads(chat.stdout.readline())["model"]["tp"] == 2
        assert b"delta" in chat.stdout.readline()
        ranks = [two.rank_of(number) for number in range(2)]
        os.kill(ranks[1], signal.SIGKILL)
        killed = time.monotonic()
        who = f"rank 1 on {os.uname().nodename} has disconnected"
        with pytest.raises(DeviceError, match=re.escape(who)):
            for _ in events:
                pass
        end = json.loads(chat.stdout.read().splitlines()[-1])
        assert chat.wait(REPORTED_S) == 4
        assert time.monotonic() - killed < REPORTED_S
        assert f"error: {who}" in chat.stderr.read().decode()
    wait_until(lambda: all(map(has_ended, ranks)))
    assert who in two.said(0)
    assert end["finish_reason"] == "error" and end["content"]
    with two.swiftchat("sessions", "export", end["session_id"], "-") as export:
        assert export.stdout is not None
        assert end["content"][:20] in export.stdout.read().decode()
    with two.swiftchat(*options) as again:
        assert again.stderr is not None
        words = again.stderr.read().decode()
    assert again.returncode == 2 and "cannot read the engine's token" in words  # it was removed


def as_slurm(rank: int, size: int = 2, host: str = "127.0.0.1", port: int = 0) -> dict[str, str]:
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": str(size),
        "SLURM_LOCALID": "0",
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
    }


@pytest.fixture
def namespaces() -> Iterator[list[str]]:
    """Two networks with one cable between them: 10.77.0.1 and 10.77.0.2."""
    names = [f"swiftchat-{os.getpid()}-{number}" for number in range(2)]
    cable = [f"sc{os.getpid()}n{number}" for number in range(2)]

    def ip(*words: str) -> bool:
        return subprocess.run(["ip", *words], capture_output=True).returncode == 0

    if shutil.which("ip") is None or not all(ip("netns", "add", name) for name in names):
        pytest.skip("no network namespaces may be made here")
    try:
        assert ip("link", "add", cable[0], "type", "veth", "peer", "name", cable[1])
        for number, name in enumerate(names):
            inside = ("-n", name)
            assert ip("link", "set", cable[number], "netns", name)
            assert ip(*inside, "link", "set", cable[number], "name", "cable")
            assert ip(*inside, "addr", "add", f"10.77.0.{number + 1}/24", "dev", "cable")
            assert all(ip(*inside, "link", "set", device, "up") for device in ("cable", "lo"))
        yield names
    finally:
        for name in names:
            ip("netns", "del", name)


def test_a_lost_host_is_noticed(hosts: Hosts, namespaces: list[str], folder: Path) -> None:
    """As srun starts them, with a store of rank 0's own; then the cable is pulled."""
    for rank, name in enumerate(namespaces):
        hosts.start(
            [
                "ip",
                "netns",
                "exec",
                name,
                sys.executable,
                *ENGINE,
                str(folder),
                *ON_CPU,
                "--listen",
                str(hosts.folder / "engine.sock"),
            ],
            **as_slurm(rank, host="10.77.0.1", port=4711),
        )
    with ConnectedClient(hosts.address()) as client:
        assert client.wait_ready().tp == 2
        assert_equals_single_rank(client, folder, 5)
        events = iter(client.generate([5], ENDLESS))
        while not isinstance(next(events), Tokens):
            pass
        subprocess.run(["ip", "-n", namespaces[1], "link", "set", "cable", "down"], check=True)
        pulled = time.monotonic()
        with pytest.raises(
            DeviceError, match=r"rank 1 on \S+ (has sent nothing for|has disconnected)"
        ):
            for _ in events:
                pass
        assert time.monotonic() - pulled < REPORTED_S + 2  # 4 s without a word, and a busy machine
    assert hosts.processes[0].wait(REPORTED_S) == 4
    hosts.processes[1].wait(2 * REPORTED_S)  # it has noticed the same


def test_each_host_is_a_stage(hosts: Hosts, folder: Path) -> None:
    socket, port = str(hosts.folder / "engine.sock"), free_port()
    command = [sys.executable, *ENGINE, str(folder), *ON_CPU, "--pp", "2", "--listen", socket]
    for rank in range(2):
        hosts.start(command, **as_slurm(rank, port=port))
    with ConnectedClient(hosts.address()) as client:
        info = client.wait_ready()
        assert (info.tp, info.pp) == (1, 2)
        assert_equals_single_rank(client, folder, 5)


_STOPS_WHEN_LOADING = """
import os, signal
import swiftchat.engine.model.memory as memory
memory.plan_share = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_rank_stopped_while_it_loads_is_named(hosts: Hosts, folder: Path) -> None:
    """Rank 0 sees no signals of another host, only that nothing is said any more."""
    (hosts.folder / "sitecustomize.py").write_text(_STOPS_WHEN_LOADING)
    paths = os.pathsep.join([str(hosts.folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, *ENGINE, str(folder), *ON_CPU]
    port = free_port()
    hosts.start(command, **as_slurm(0, port=port))
    hosts.start(command, **as_slurm(1, port=port), PYTHONPATH=paths)
    rank = psutil.Process(hosts.processes[1].pid)
    wait_until(lambda: rank.status() == psutil.STATUS_STOPPED, START_S)
    assert hosts.processes[0].wait(REPORTED_S + 2) == 4  # 4 s without a word, and a busy machine
    assert f"rank 1 on {os.uname().nodename} has sent nothing for 4 s" in hosts.said()


def test_an_engine_by_itself_ends_with_a_signal(hosts: Hosts, folder: Path) -> None:
    socket = hosts.folder / "engine.sock"
    hosts.start([sys.executable, *ENGINE, str(folder), *ON_CPU, "--listen", str(socket)])
    with ConnectedClient(hosts.address()) as client:
        assert client.wait_ready().tp == 1
        events = iter(client.generate([5], ENDLESS))
        next(events)
        hosts.processes[0].send_signal(signal.SIGTERM)
        with pytest.raises(DeviceError, match="the engine was ended by SIGTERM"):
            for _ in events:
                pass
    assert hosts.processes[0].wait(REPORTED_S) == 0, hosts.said()
    assert not socket.exists()


def test_an_engine_ends_though_nobody_reads_its_log(hosts: Hosts, folder: Path) -> None:
    socket = hosts.folder / "engine.sock"
    reads, writes = os.pipe()
    command = [sys.executable, *ENGINE, str(folder), *ON_CPU, "--listen", str(socket)]
    with subprocess.Popen(command, stderr=writes) as engine:
        os.close(writes)
        assert os.read(reads, 1)
        os.close(reads)
        engine.send_signal(signal.SIGTERM)
        assert engine.wait(REPORTED_S) == 0
    assert not socket.exists()


def test_what_cannot_be_divided_is_refused_at_once(hosts: Hosts, folder: Path) -> None:
    hosts.start([sys.executable, *ENGINE, str(folder), *ON_CPU], **as_slurm(0, 3, port=1))
    assert hosts.processes[0].wait(30) == 2
    assert "num_attention_heads 8 is not divisible by --tp 3" in hosts.said()
    assert "hint: " in hosts.said() and "Traceback" not in hosts.said()
    command = [sys.executable, *ENGINE, str(folder), *ON_CPU, "--pp", "2"]
    hosts.start(command, **as_slurm(0, 3, port=1))
    assert hosts.processes[1].wait(30) == 2
    assert "3 ranks cannot be divided into --pp 2 stages" in hosts.said(1)


def test_another_model_on_another_host_is_named(folder: Path, tmp_path: Path) -> None:
    right = hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
    check_same_model(folder, right)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BadModelFile, match=r"config\.json differs from rank 0's"):
        check_same_model(tmp_path, right)


@pytest.mark.parametrize(
    ("hosts_of", "local_ranks", "expected"),
    [
        (
            ["a", "a", "b", "b"],
            [0, 1, 0, 1],
            RankPlacement(0, 2, "127.0.0.1", is_single_host=False),
        ),
        (
            ["a", "b", "a", "b"],
            [0, 0, 1, 1],
            RankPlacement(1, 2, "127.0.0.1", is_single_host=False),
        ),
        (["a"] * 4, [0, 1, 2, 3], RankPlacement(2, 4, "127.0.0.1", is_single_host=True)),
        (["a"] * 4, [0, 1, 0, 1], RankPlacement(0, 4, "127.0.0.1", is_single_host=False)),
    ],
)
def test_where_a_rank_is(
    hosts_of: list[str],
    local_ranks: list[int],
    expected: RankPlacement,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "")  # so that it is undone
    monkeypatch.delenv("NCCL_SOCKET_IFNAME")
    launch = Launch(2, 4, local_ranks[2], "a", 1)
    assert (
        rank_placement(launch, {"hosts": hosts_of, "local_ranks": local_ranks}, "127.0.0.1")
        == expected
    )
    assert os.environ["NCCL_SOCKET_IFNAME"] == "=lo"


class Store(dict[str, bytes]):
    """What rank 0 leaves, as a store of `torch.distributed` keeps it."""

    def __init__(self) -> None:
        self._told = threading.Event()

    def set(self, key: str, value: bytes) -> None:
        self[key] = value
        self._told.set()

    def get(self, key: str) -> bytes:  # type: ignore[override]
        assert self._told.wait(10)
        return self[key]


def test_ranks_that_do_not_come_are_named() -> None:
    """One comes, and one with another secret; the rest do not."""
    store, launch = Store(), Launch(0, 4, 0, "127.0.0.1", 1)
    outcome: list[Any] = []

    def lead() -> None:
        try:
            outcome.append(accept_ranks(store, launch, 2))
        except DeviceError as error:
            outcome.append(error)

    leading = threading.Thread(target=lead)
    leading.start()
    here, address = connect_to_rank_0(store, Launch(2, 4, 1, "127.0.0.1", 1))
    assert address == "127.0.0.1"
    forged = Store()
    import msgpack

    forged.set("rank 0", msgpack.packb([msgpack.unpackb(store.get("rank 0"))[0], "guessed"]))
    stranger, _ = connect_to_rank_0(forged, Launch(1, 4, 1, "127.0.0.1", 1))
    leading.join(10)
    (error,) = outcome
    assert isinstance(error, DeviceError)
    assert error.message == "ranks not joined within 2 s: 1, 3" and "MASTER_ADDR" in error.hint
    assert stranger.poll(5)
    with pytest.raises((EOFError, OSError)):
        stranger.recv_bytes()
    here.close()


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
        (as_slurm(1, 2, "n1", 7) | _TORCHRUN, Launch(3, 8, 1, "n1", 29500)),
        (as_slurm(1, 2, "n1", 7), Launch(1, 2, 0, "n1", 7)),
        (as_slurm(0, 1, "n1", 7), Launch()),
        (_BATCH_SCRIPT, Launch()),
    ],
)
def test_what_a_launcher_says(environ: dict[str, str], expected: Launch) -> None:
    assert Launch.from_environment(environ) == expected


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"RANK": "8"}, "RANK is 8 and WORLD_SIZE is 8"),
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE is 'many'"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is missing"),
        ({"MASTER_PORT": ""}, "MASTER_PORT is ''"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(change: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Launch.from_environment(_TORCHRUN | change)
