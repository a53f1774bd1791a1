"""Engines on their own: one process, two launchers on this machine, two network namespaces."""

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from socket import create_server

import psutil
import pytest

from swiftchat.engine.api.protocol import Tokens
from swiftchat.engine.comm.communicator import RankPlacement
from swiftchat.engine.ranks.launch import Launch
from swiftchat.engine.server.standalone import check_same_model, rank_placement
from swiftchat.errors import BadModelFile, DeviceError
from tests.engine.ranks.test_rendezvous import slurm_environ
from tests.support.remote_engine import ConnectedClient, chat_model_folder
from tests.support.worker_processes import (
    ENDLESS,
    GREEDY,
    assert_equals_single_rank,
    collect,
    has_ended,
    wait_until,
)

# A busy machine may take many times the limit of the heartbeats.
REPORTED_S = 60.0
START_S = 90.0
ENGINE = str(Path(sys.executable).with_name("swiftchat-engine"))
ON_CPU = ("--device", "cpu", "--dtype", "float32", "--threads", "1")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="several ranks need Linux")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    return chat_model_folder(path, max_position_embeddings=50000)


class Hosts:
    """Processes started like those of several hosts, each with a log."""

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

    def log_text(self, number: int = 0) -> str:
        return self._log(number).read_text()

    def address(self) -> str:
        """Wait until rank 0 logs the address for terminals, and return it."""
        found: list[str] = []

        def is_logged() -> bool:
            found[:] = re.findall(r"--connect (\S+)", self.log_text())
            assert self.processes[0].poll() is None, self.log_text()
            return bool(found)

        wait_until(is_logged, START_S)
        return found[0]

    def rank_of(self, number: int) -> int:
        """Return the process id of the rank that torchrun has started on a host."""
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

    def kill_all(self) -> None:
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
        folders = {f"XDG_{kind}_HOME": str(self.folder / kind) for kind in kinds}
        return os.environ | folders


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    running = Hosts(tmp_path)
    yield running
    running.kill_all()


@pytest.fixture(scope="module")
def two(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Two hosts for tests that leave them running."""
    running = Hosts(tmp_path_factory.mktemp("two"))
    start_two(running, folder)
    yield running
    running.kill_all()


def start_two(hosts: Hosts, folder: Path) -> None:
    """Start two torchrun processes with a rank each; rank 0 listens on loopback."""
    port = free_port()
    for number in range(2):
        hosts.start(
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
                "--no-python",
                ENGINE,
                str(folder),
                *ON_CPU,
            ]
        )


def free_port() -> int:
    with create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def connected_client(hosts: Hosts) -> ConnectedClient:
    address = hosts.address()
    state = hosts.folder / "STATE" / "swiftchat"
    return ConnectedClient(address, state / f"engine-{address.rpartition(':')[2]}.token")


def test_two_hosts_equal_one_process(two: Hosts, folder: Path) -> None:
    with connected_client(two) as client:
        shown: list[str] = []
        info = client.wait_ready(lambda progress: shown.append(progress.label))
        assert info.tp == 2
        assert shown
        assert_equals_single_rank(client, folder, 20)


def test_disconnecting_ends_only_the_terminals_generations(two: Hosts) -> None:
    with connected_client(two) as client:
        expected = collect(client.generate([9, 9], GREEDY))[0]
    with connected_client(two) as first:
        next(iter(first.generate([9, 9], ENDLESS)))
    with connected_client(two) as client:
        wait_until(lambda: client.stats()["running"] == 0)
        assert collect(client.generate([9, 9], GREEDY))[0] == expected


@pytest.mark.fault(7)
def test_ranks_listen_on_the_masters_interface_only(two: Hosts) -> None:
    two.address()  # both ranks have started
    ranks = [psutil.Process(two.rank_of(number)) for number in range(2)]
    sockets = [found for rank in ranks for found in rank.net_connections("inet")]
    listening = {found.laddr.ip for found in sockets if found.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}


def test_error_names_a_rank_killed_on_another_host(hosts: Hosts, folder: Path) -> None:
    """The text generated until then is saved, and all ranks end."""
    port = free_port()
    for number in range(2):
        hosts.start([ENGINE, str(folder), *ON_CPU], **slurm_environ(number, port=port))
    address = hosts.address()
    options = ["--connect", address, "--temp", "0", "--stream-json", "-p", "hello"]
    with connected_client(hosts) as client, hosts.swiftchat(*options) as chat:
        client.wait_ready()
        events = iter(client.generate([5], ENDLESS))
        assert chat.stdout is not None and chat.stderr is not None
        assert json.loads(chat.stdout.readline())["model"]["tp"] == 2
        assert b"delta" in chat.stdout.readline()
        ranks = [process.pid for process in hosts.processes]
        os.kill(ranks[1], signal.SIGKILL)
        killed = time.monotonic()
        reason = f"rank 1 on {os.uname().nodename} has disconnected"
        with pytest.raises(DeviceError, match=re.escape(reason)):
            for _ in events:
                pass
        end = json.loads(chat.stdout.read().splitlines()[-1])
        assert chat.wait(REPORTED_S) == 4
        assert time.monotonic() - killed < REPORTED_S
        assert f"error: {reason}" in chat.stderr.read().decode()
    wait_until(lambda: all(map(has_ended, ranks)))
    assert reason in hosts.log_text(0)
    assert end["finish_reason"] == "error" and end["content"]
    with hosts.swiftchat("sessions", "export", end["session_id"], "-") as export:
        assert export.stdout is not None
        assert end["content"][:20] in export.stdout.read().decode()
    with hosts.swiftchat(*options) as again:
        assert again.stderr is not None
        stderr = again.stderr.read().decode()
    assert (
        again.returncode == 2 and "cannot read the engine's token" in stderr
    )  # the token file was removed


@pytest.fixture
def namespaces() -> Iterator[list[str]]:
    """Two network namespaces connected by a veth pair: 10.77.0.1 and 10.77.0.2."""
    names = [f"swiftchat-{os.getpid()}-{number}" for number in range(2)]
    cable = [f"sc{os.getpid()}n{number}" for number in range(2)]

    def ip(*arguments: str) -> bool:
        return subprocess.run(["ip", *arguments], capture_output=True).returncode == 0

    if shutil.which("ip") is None or not all(ip("netns", "add", name) for name in names):
        pytest.skip("network namespaces cannot be created")
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


def test_lost_host_raises(hosts: Hosts, namespaces: list[str], folder: Path) -> None:
    """With SLURM's variables and a store created by rank 0; then the link goes down."""
    for rank, name in enumerate(namespaces):
        hosts.start(
            [
                "ip",
                "netns",
                "exec",
                name,
                ENGINE,
                str(folder),
                *ON_CPU,
                "--listen",
                str(hosts.folder / "engine.sock"),
            ],
            **slurm_environ(rank, host="10.77.0.1", port=4711),
        )
    with ConnectedClient(hosts.address()) as client:
        assert client.wait_ready().tp == 2
        assert_equals_single_rank(client, folder, 5)
        events = iter(client.generate([5], ENDLESS))
        while not isinstance(next(events), Tokens):
            pass
        subprocess.run(["ip", "-n", namespaces[1], "link", "set", "cable", "down"], check=True)
        link_down_at = time.monotonic()
        with pytest.raises(
            DeviceError, match=r"rank 1 on \S+ (has sent nothing for|has disconnected)"
        ):
            for _ in events:
                pass
        assert time.monotonic() - link_down_at < REPORTED_S
    assert hosts.processes[0].wait(REPORTED_S) == 4
    hosts.processes[1].wait(REPORTED_S)  # it ends for the same reason


def test_pipeline_stage_per_host(hosts: Hosts, folder: Path) -> None:
    socket, port = str(hosts.folder / "engine.sock"), free_port()
    command = [ENGINE, str(folder), *ON_CPU, "--pp", "2", "--listen", socket]
    for rank in range(2):
        hosts.start(command, **slurm_environ(rank, port=port))
    with ConnectedClient(hosts.address()) as client:
        info = client.wait_ready()
        assert (info.tp, info.pp) == (1, 2)
        assert_equals_single_rank(client, folder, 5)


_STOPS_WHEN_LOADING = """
import os, signal
import swiftchat.engine.model.memory as memory
memory.plan_shard_cache = lambda *_, **__: os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.mark.fault(13)
def test_error_names_a_rank_stopped_while_loading(hosts: Hosts, folder: Path) -> None:
    """Rank 0 cannot see signals on another host; it misses the heartbeats."""
    site = hosts.folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(_STOPS_WHEN_LOADING)
    paths = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [ENGINE, str(folder), *ON_CPU]
    port = free_port()
    hosts.start(command, **slurm_environ(0, port=port))
    hosts.start(command, **slurm_environ(1, port=port), PYTHONPATH=paths)
    rank = psutil.Process(hosts.processes[1].pid)
    wait_until(lambda: rank.status() == psutil.STATUS_STOPPED, START_S)
    assert hosts.processes[0].wait(REPORTED_S) == 4
    assert f"rank 1 on {os.uname().nodename} has sent nothing for 4 s" in hosts.log_text()


def test_single_process_engine_ends_with_a_signal(hosts: Hosts, folder: Path) -> None:
    socket = hosts.folder / "engine.sock"
    hosts.start([ENGINE, str(folder), *ON_CPU, "--listen", str(socket)])
    with ConnectedClient(hosts.address()) as client:
        assert client.wait_ready().tp == 1
        events = iter(client.generate([5], ENDLESS))
        next(events)
        hosts.processes[0].send_signal(signal.SIGTERM)
        with pytest.raises(DeviceError, match="the engine was ended by SIGTERM"):
            for _ in events:
                pass
    assert hosts.processes[0].wait(REPORTED_S) == 0, hosts.log_text()
    assert not socket.exists()


def test_engine_ends_when_its_log_pipe_is_closed(hosts: Hosts, folder: Path) -> None:
    socket = hosts.folder / "engine.sock"
    reads, writes = os.pipe()
    command = [ENGINE, str(folder), *ON_CPU, "--listen", str(socket)]
    with subprocess.Popen(command, stderr=writes) as engine:
        os.close(writes)
        assert os.read(reads, 1)
        os.close(reads)
        engine.send_signal(signal.SIGTERM)
        assert engine.wait(REPORTED_S) == 0
    assert not socket.exists()


def test_indivisible_model_exits_at_once(hosts: Hosts, folder: Path) -> None:
    hosts.start([ENGINE, str(folder), *ON_CPU], **slurm_environ(0, 3, port=1))
    assert hosts.processes[0].wait(START_S) == 2
    assert "num_attention_heads 8 is not divisible by --tp 3" in hosts.log_text()
    assert "hint: " in hosts.log_text() and "Traceback" not in hosts.log_text()
    command = [ENGINE, str(folder), *ON_CPU, "--pp", "2"]
    hosts.start(command, **slurm_environ(0, 3, port=1))
    assert hosts.processes[1].wait(START_S) == 2
    assert "3 ranks cannot be divided into --pp 2 stages" in hosts.log_text(1)


def test_different_model_on_another_host_raises(folder: Path, tmp_path: Path) -> None:
    digest = hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
    check_same_model(folder, digest)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BadModelFile, match=r"config\.json differs from rank 0's"):
        check_same_model(tmp_path, digest)


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
def test_rank_placement(
    hosts_of: list[str],
    local_ranks: list[int],
    expected: RankPlacement,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "")  # restored after the test
    monkeypatch.delenv("NCCL_SOCKET_IFNAME")
    launch = Launch(2, 4, local_ranks[2], "a", 1)
    assert (
        rank_placement(launch, {"hosts": hosts_of, "local_ranks": local_ranks}, "127.0.0.1")
        == expected
    )
    assert os.environ["NCCL_SOCKET_IFNAME"] == "=lo"
