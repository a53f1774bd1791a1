"""One program of each kind started as a user starts it: other tests fork them, as `forks` says."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import EngineConfig
from tests.support import fake_engine, tiny
from tests.support.forks.install import real_starts
from tests.support.forks.start import SCRIPTS
from tests.support.program import Program
from tests.support.real_chat import RealChat
from tests.support.serve_processes import SWIFTCHAT, serve_process, swiftchat
from tests.support.terminal import Terminal
from tests.support.worker_processes import (
    GREEDY,
    WIDE,
    all_ranks,
    collect,
    wait_until,
)

DEVICE = ("--device", "cpu", "--threads", "1")


@pytest.fixture(autouse=True)
def _started() -> Iterator[None]:
    with real_starts():
        yield


@pytest.fixture
def model(tmp_path: Path) -> tuple[str, ...]:
    folder = fake_engine.make_folder(tmp_path / "model", max_position_embeddings=4096)
    return ("-m", str(folder), "--dummy", str(folder / "config.json"), *DEVICE)


def test_a_one_shot_and_its_worker(model: tuple[str, ...]) -> None:
    done = swiftchat(*model, "-p", "hi", "--max-tokens", "3", "--temp", "0", "--json")
    assert done.returncode == 0 and b'"content"' in done.stdout, done.stderr


def test_a_chat_in_a_terminal_with_two_ranks(tmp_path: Path) -> None:
    with RealChat(tmp_path / "model", "--max-tokens", "3", tp=2) as chat:
        chat.ask("hi")
        assert chat.leave() == 0


def test_a_chat_in_a_terminal_with_scripted_answers(tmp_path: Path) -> None:
    program = Program(fake_engine.make_folder(tmp_path / "model"))
    executable, *args = program.command("An answer.")
    terminal = Terminal(executable, args)
    try:
        terminal.type("hi\r")
        terminal.wait_for("An answer.")
        terminal.wait_for(lambda _: terminal.is_at_prompt)
        terminal.type_now("\x04")
        assert terminal.wait_end() == 0
    finally:
        terminal.kill()


def test_a_worker_and_its_rank(tmp_path: Path) -> None:
    tiny.make("llama-biases", tmp_path, **WIDE)
    config = EngineConfig(device="cpu", dtype="float32", num_threads=1, tp=2)
    with EngineClient(config, tmp_path) as client:
        client.wait_ready()
        assert len(all_ranks(client, 2)) == 2
        assert collect(client.generate([5, 6, 7], GREEDY))[0]


def test_serve(model: tuple[str, ...]) -> None:
    with serve_process(*model[1:]) as served:
        assert served.end() == 0


def test_an_engine_on_its_own(model: tuple[str, ...], tmp_path: Path) -> None:
    socket = tmp_path / "engine.sock"
    command = [SCRIPTS[1], *model[1:], "--listen", str(socket)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as engine:
        wait_until(lambda: socket.exists() or engine.poll() is not None)
        engine.send_signal(signal.SIGTERM)
        assert engine.wait(60) == 0


def test_an_error_of_the_command_line() -> None:
    done = subprocess.run([*SWIFTCHAT, "--nonsense"], capture_output=True, env=os.environ)
    assert done.returncode == 2 and done.stderr.startswith(b"error: ")
