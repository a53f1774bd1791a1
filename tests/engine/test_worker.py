"""The worker process: generation, cancel, crash, and exit with its terminal."""

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from swiftchat.engine.api import local, wire
from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.kv_folder import user_kv_folder
from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.api.protocol import Finished, Tokens
from swiftchat.errors import (
    BadModelFile,
    ContextOverflow,
    DeviceError,
    ModelNotFound,
    OutOfMemory,
)
from tests.support import tiny
from tests.support.worker_processes import ENDLESS, GREEDY, collect, has_ended, inject_fault

CONFIG = EngineConfig(device="cpu", dtype="float32", num_threads=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    tiny.make("llama", path)
    return path


@pytest.fixture(scope="module")
def client(folder: Path):
    with EngineClient(CONFIG, folder) as running:
        running.wait_ready()
        yield running


def test_worker_generates_the_ids_of_the_engine(client: EngineClient, folder: Path) -> None:
    expected, _ = tiny.run(tiny.engine(folder), {1: [5, 6, 7]}, GREEDY)
    ids, end = collect(client.generate([5, 6, 7], GREEDY))
    assert ids == expected[1]
    assert end.reason == "length" and end.completion_tokens == 20
    assert client.info is not None and client.info.device.startswith("cpu, ")
    assert client.stats()["used_blocks"] == 0


def test_two_concurrent_generations(client: EngineClient) -> None:
    alone = [collect(client.generate([5 + i], GREEDY))[0] for i in range(2)]
    both = [client.generate([5 + i], GREEDY) for i in range(2)]
    assert [collect(generation)[0] for generation in both] == alone


def test_cancel_ends_a_generation_and_the_next_is_correct(client: EngineClient) -> None:
    expected = collect(client.generate([9, 9], GREEDY))[0]
    generation = client.generate([9, 9], ENDLESS)
    ids: list[int] = []
    for event in generation:
        if isinstance(event, Tokens):
            ids += event.ids
            if len(ids) >= 5:
                generation.cancel()
    assert isinstance(event, Finished) and event.reason == "interrupt"
    assert ids[:5] == expected[:5]
    assert collect(client.generate([9, 9], GREEDY))[0] == expected


def test_engine_continues_after_an_error(client: EngineClient) -> None:
    with pytest.raises(ContextOverflow, match="256"):
        collect(client.generate([5] * 300, GREEDY))
    assert len(collect(client.generate([5], GREEDY))[0]) == 20


@pytest.mark.fault(4)
def test_error_names_the_signal_of_a_killed_worker(folder: Path) -> None:
    with EngineClient(CONFIG, folder) as client:
        client.wait_ready()
        generation = client.generate([5], ENDLESS)
        next(iter(generation))
        os.kill(client.pid, signal.SIGKILL)
        with pytest.raises(DeviceError, match="SIGKILL"):
            collect(generation)
        with pytest.raises(DeviceError, match="SIGKILL"):
            client.generate([5], GREEDY)
        with pytest.raises(DeviceError, match="SIGKILL"):
            client.stats()


def test_error_after_a_worker_is_killed_while_loading(folder: Path) -> None:
    with EngineClient(CONFIG, folder) as client:
        os.kill(client.pid, signal.SIGKILL)
        with pytest.raises(DeviceError, match="SIGKILL"):
            client.wait_ready()


_NO_MEMORY_ONCE = """
import swiftchat.engine.generation.engine as engine
first_result, calls = engine.first_result, iter(range(10**9))
def failing(*args):
    if next(calls) == 4:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 B")
    return first_result(*args)
engine.first_result = failing
"""


@pytest.mark.fault(17)
def test_a_step_without_memory_ends_only_its_answers(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inject_fault(monkeypatch, tmp_path / "fault", 0, _NO_MEMORY_ONCE)
    with EngineClient(CONFIG, folder) as client:
        ids: list[int] = []
        with pytest.raises(OutOfMemory, match="out of memory: DefaultCPUAllocator") as caught:
            for event in client.generate([5], ENDLESS):
                ids += event.ids if isinstance(event, Tokens) else []
        assert ids and "use a smaller --ctx-size" in caught.value.hint
        pid = client.pid
        assert len(collect(client.generate([5], GREEDY))[0]) == 20
        assert client.pid == pid and not has_ended(pid)


def test_missing_and_damaged_model(tmp_path: Path, folder: Path) -> None:
    with EngineClient(CONFIG, tmp_path / "none") as client, pytest.raises(ModelNotFound):
        client.wait_ready()
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in folder.iterdir():
        (damaged / file.name).write_bytes(file.read_bytes()[:-100])
    (damaged / "config.json").write_bytes((folder / "config.json").read_bytes())
    with EngineClient(CONFIG, damaged) as client, pytest.raises(BadModelFile):
        client.wait_ready()


def test_close_ends_the_worker(folder: Path) -> None:
    with EngineClient(CONFIG, folder) as client:
        pid = client.pid
        client.wait_ready()
        client.generate([5], ENDLESS)
    assert has_ended(pid)


def test_the_client_does_not_import_torch() -> None:
    script = "import sys, swiftchat.engine.api.client; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_close_does_not_wait_for_a_stopped_worker(folder: Path) -> None:
    client = EngineClient(CONFIG, folder).start()
    client.wait_ready()
    pid = client.pid
    os.kill(pid, signal.SIGSTOP)
    client.close()
    assert has_ended(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="torch has another OpenMP there")
def test_openmp_threads_spin_briefly(folder: Path) -> None:
    environment = {**os.environ, "OMP_DISPLAY_ENV": "VERBOSE"}
    environment.pop("GOMP_SPINCOUNT", None)
    own_socket, worker_socket = socket.socketpair()
    worker = subprocess.Popen(
        [sys.executable, "-m", "swiftchat.engine.worker", "--fds", str(worker_socket.fileno())],
        pass_fds=[worker_socket.fileno()],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    worker_socket.close()
    with own_socket, Connection(os.dup(own_socket.fileno())) as connection:
        load = {"type": "load", "path": str(folder), "config": CONFIG.to_wire(), "serve": None}
        wire.send(connection, load)
        while wire.receive(connection)["type"] != "ready":
            pass
    _, output = worker.communicate(timeout=60)
    assert "GOMP_SPINCOUNT = '10000'" in output


# A slow machine may need more than the 1.5 s after which a worker exits, and the 2.5 s after which
# it is killed.
SAVES_FOR_A_MINUTE = """
from swiftchat.engine.server.serve import EngineServer
wait_saved = EngineServer.wait_saved
EngineServer.wait_saved = lambda self, seconds: wait_saved(self, 60)
"""


def test_a_worker_saves_before_it_exits_and_the_next_restores(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inject_fault(monkeypatch, tmp_path / "site", 0, SAVES_FOR_A_MINUTE)
    monkeypatch.setattr(local, "_EXIT_S", 60.0)
    prompt = tiny.random_ids(150, seed=2)
    kept = replace(GREEDY, saves_cache=True)
    with EngineClient(CONFIG, folder) as first:
        expected, _ = collect(first.generate(prompt, kept))
    kv = user_kv_folder()
    assert len(list(kv.glob("*/*.safetensors"))) == 1
    assert not list(kv.glob("*/*.partial"))
    with EngineClient(CONFIG, folder) as second:
        ids, end = collect(second.generate(prompt, GREEDY))
        os.kill(second.pid, signal.SIGKILL)
    assert ids == expected
    assert end.cached_tokens == end.restored_tokens == 128 and not end.warnings
