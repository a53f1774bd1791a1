"""Engines that stay behind a chat, `--keep-alive` and `serve -d`, as processes."""

import json
import os
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from swiftchat.engine.api.address import Address
from swiftchat.engine.api.engine_log import MAX_LOG_BYTES, log_path, open_log, shorten_log
from swiftchat.engine.api.runtime_folder import RuntimeFolder
from tests.support.open_terminals import terminals
from tests.support.remote_engine import chat_model_folder
from tests.support.serve_processes import END_S, SWIFTCHAT, serve_process, swiftchat
from tests.support.worker_processes import has_ended, inject_fault, running_programs, wait_until

OPTIONS = ("--device", "cpu", "--dtype", "float32", "--threads", "1")
STAY = ("--keep-alive", "10m")
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny"
    path.mkdir()
    return chat_model_folder(path, max_position_embeddings=50000)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """After each test no process, socket or log may be left once the engines are stopped."""
    yield
    swiftchat("stop", "--all")
    wait_until(lambda: not running_programs(), END_S)
    assert RuntimeFolder().sockets() == []


def listed() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(swiftchat("ps", "--json").stdout)
    return found


def one_shot(folder: Path, *options: str, **environ: str) -> tuple[str, str]:
    """Return the answer and stderr."""
    args = ("-m", str(folder), *OPTIONS, *options, "-p", "hello", "--temp", "0", "-n", "8")
    result = swiftchat(*args, "--json", **environ)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)["content"], result.stderr.decode()


def test_the_next_one_shot_uses_the_engine_of_the_first(folder: Path) -> None:
    alone, _ = one_shot(folder)
    assert listed() == []
    assert one_shot(folder, *STAY) == (alone, "")
    (engine,) = listed()
    assert engine["name"] == "tiny" and engine["device"].startswith("cpu")
    assert engine["num_terminals"] == 0 and 590 < engine["ends_in_s"] <= 600
    row = swiftchat("ps").stdout.decode().splitlines()[1]
    assert " in 9 min " in row
    for options in (STAY, ()):  # one that leaves no engine uses it too
        assert one_shot(folder, *options) == (alone, "")
    assert [one["pid"] for one in listed()] == [engine["pid"]]


def test_the_engine_is_detached_and_private(folder: Path) -> None:
    one_shot(folder, *STAY)
    (engine,) = listed()
    pid = engine["pid"]
    assert os.getsid(pid) == pid
    log = log_path(Path(engine["socket"]))
    streams = [Path(f"/proc/{pid}/fd/{number}").readlink() for number in range(3)]
    assert streams == [Path("/dev/null"), log, log]
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (log, log.parent)]
    assert modes == [0o600, 0o700]
    assert stat.S_IMODE(Path(engine["socket"]).stat().st_mode) == 0o600
    swiftchat("stop")
    assert not log.exists() and not Path(engine["socket"]).exists()


def test_it_ends_when_it_is_not_used(folder: Path) -> None:
    one_shot(folder, "--keep-alive", "1s")
    engines = listed()
    wait_until(lambda: listed() == [], END_S)
    wait_until(lambda: not running_programs(), END_S)
    for engine in engines:
        assert not log_path(Path(engine["socket"])).exists()


def test_a_later_chat_may_keep_it_longer(folder: Path) -> None:
    one_shot(folder, *STAY)
    one_shot(folder, "--keep-alive", "2h")
    one_shot(folder, "--keep-alive", "1s")
    (engine,) = listed()
    assert engine["keep_alive_s"] == 7200


def test_two_at_once_share_one_engine(folder: Path) -> None:
    args = ("-m", str(folder), *OPTIONS, *STAY, "-p", "hello", "--temp", "0", "-n", "8")
    processes = [
        subprocess.Popen(
            [*SWIFTCHAT, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=-1
        )
        for _ in range(2)
    ]
    answers = {process.communicate()[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    assert len(answers) == len(listed()) == 1


def test_other_engine_options_start_another(folder: Path) -> None:
    one_shot(folder, *STAY)
    one_shot(folder, *STAY, "--ctx-size", "4096")
    assert len(listed()) == 2
    one_shot(folder, *STAY, "--no-attach")  # alone, and nothing is left
    assert len(listed()) == 2


def test_a_killed_engine_does_not_break_the_next(folder: Path) -> None:
    expected, _ = one_shot(folder, *STAY)
    (engine,) = listed()
    os.kill(engine["pid"], signal.SIGKILL)
    wait_until(lambda: has_ended(engine["pid"]), END_S)
    assert Path(engine["socket"]).exists()
    assert one_shot(folder, *STAY) == (expected, "")
    (other,) = listed()
    assert other["pid"] != engine["pid"] and other["socket"] == engine["socket"]


def test_the_configuration_file_keeps_engines_of_chats_not_of_serve(folder: Path) -> None:
    config = Path(os.environ["XDG_CONFIG_HOME"]) / "swiftchat" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('keep_alive = "10m"\n')
    one_shot(folder)
    assert [one["keep_alive_s"] for one in listed()] == [600]
    swiftchat("stop")
    with serve_process(str(folder), *OPTIONS):
        assert [one["keep_alive_s"] for one in listed()] == [None]


def test_a_chat_in_a_terminal_leaves_its_engine(folder: Path) -> None:
    """Also a chat that is killed: the engine goes on, and the next chat attaches."""
    command = [*SWIFTCHAT, "-m", str(folder), *OPTIONS, *STAY, "-n", "8"]
    with terminals() as open_terminal:
        first = open_terminal(command)
        wait_until(listed, END_S)
        (engine,) = listed()
        assert engine["num_terminals"] == 1 and "running engine" not in first.look()
        for number in (signal.SIGHUP, signal.SIGKILL):
            first.process.kill(number)
            wait_until(lambda: listed()[0]["num_terminals"] == 0, END_S)
            first = open_terminal(command)
            first.wait_for("on a running engine")
        assert [one["pid"] for one in listed()] == [engine["pid"]]


def test_an_open_chat_keeps_its_engine(folder: Path) -> None:
    """The chat that has started it counts as the others do."""
    with terminals() as open_terminal:
        open_terminal([*SWIFTCHAT, "-m", str(folder), *OPTIONS, "--keep-alive", "1s"])
        wait_until(listed, END_S)
        wait_until(lambda: listed()[0]["device"] and listed()[0]["idle_s"] > 2.5, END_S)
        assert listed()[0]["ends_in_s"] is None
    wait_until(lambda: listed() == [], END_S)


def test_serve_in_the_background(folder: Path) -> None:
    result = swiftchat("serve", str(folder), "-d", *OPTIONS)
    assert result.returncode == 0 and b"tiny is ready" in result.stderr, result.stderr
    (engine,) = listed()
    assert engine["keep_alive_s"] is None and psutil.Process(engine["pid"]).ppid() != os.getpid()
    _, errors = one_shot(folder)
    assert errors == "" and len(listed()) == 1
    again = swiftchat("serve", str(folder), "-d", *OPTIONS)
    assert again.returncode == 4 and b"already running" in again.stderr
    assert swiftchat("stop", "tiny").returncode == 0
    assert listed() == []


def test_ctrl_c_ends_a_background_engine_that_is_loading(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
import threading
import swiftchat.engine.device.lazy_torch as lazy_torch
lazy_torch.import_torch = threading.Event().wait
"""
    inject_fault(monkeypatch, tmp_path / "slow", 0, code)
    with serve_process(str(folder), "-d", *OPTIONS, ready=False) as process:
        wait_until(listed, END_S)
        assert process.end() == 0, process.log
    wait_until(lambda: not running_programs(), END_S)
    assert listed() == []


def test_the_api_needs_the_foreground(folder: Path) -> None:
    result = swiftchat("serve", str(folder), "-d", "--openai", "127.0.0.1:0")
    assert result.returncode == 2 and b"in the foreground" in result.stderr


@pytest.mark.parametrize("place", ["runtime", "log"])
def test_without_a_safe_place_the_engine_does_not_stay(folder: Path, place: str) -> None:
    """The chat warns and answers with an engine of its own."""
    if place == "runtime":
        runtime = RuntimeFolder()
        runtime.create()
        runtime.path.chmod(0o755)
        reason = "its mode is 755, not 700"
    else:
        state = Path(os.environ["XDG_STATE_HOME"]) / "swiftchat"
        state.mkdir(parents=True)
        (state / "engines").write_text("no folder")
        reason = "cannot write"
    answer, errors = one_shot(folder, *STAY)
    assert answer and errors.startswith("warning: ") and reason in errors
    wait_until(lambda: not running_programs(), END_S)
    if place == "runtime":
        runtime.path.chmod(0o700)


def test_the_third_cold_start_within_an_hour_gives_a_hint(folder: Path) -> None:
    """In a terminal only, and once."""
    command = [*SWIFTCHAT, "-m", str(folder), *OPTIONS, "-n", "2", "-p", "hello"]
    hint, given = "keep_alive", []
    assert [one_shot(folder)[1] for _ in range(3)] == [""] * 3  # in pipes
    with terminals() as open_terminal:
        for _ in range(4):
            terminal = open_terminal(command, waits=False, columns=200)
            assert terminal.wait_end() == 0
            given.append(hint in terminal.process.before.decode())
    assert given == [False, False, True, False]


def test_an_engine_without_room_names_the_others(folder: Path, tmp_path: Path) -> None:
    one_shot(folder, *STAY)
    large = tmp_path / "large"
    large.mkdir()
    chat_model_folder(large, max_position_embeddings=2**30)
    result = swiftchat("-m", str(large), *OPTIONS, "--ctx-size", str(2**30), "-p", "hello")
    assert result.returncode == 4 and b"not enough memory" in result.stderr, result.stderr
    assert b"hint: swiftchat stop frees the memory of running engines (tiny); " in result.stderr


def test_an_error_of_loading_leaves_nothing(folder: Path) -> None:
    args = ("-m", str(folder), *OPTIONS, *STAY, "--ctx-size", "60000", "-p", "hello")
    result = swiftchat(*args)
    assert result.returncode != 0 and result.stderr.decode().count("error: ") == 1
    wait_until(lambda: not running_programs(), END_S)
    assert listed() == []


def test_a_log_keeps_its_end(tmp_path: Path) -> None:
    with open_log(tmp_path / "some.sock") as log:
        log.write(b"first\n")
        shorten_log(log.fileno())
        assert log_path(tmp_path / "some.sock").read_bytes() == b"first\n"
        log.write(b"x" * MAX_LOG_BYTES + b"last\n")
        shorten_log(log.fileno())
        log.write(b"after\n")
    content = log_path(tmp_path / "some.sock").read_bytes()
    assert content.endswith(b"xlast\nafter\n") and len(content) < MAX_LOG_BYTES


def test_what_listens_already_is_not_replaced(folder: Path) -> None:
    """A socket of this user that never answers: the chat starts an engine of its own."""
    one_shot(folder, *STAY)
    (engine,) = listed()
    swiftchat("stop")
    path = Path(engine["socket"])
    with Address(path=path).listen() as silent:
        os.utime(path, (0, 0))  # it is not about to start
        assert one_shot(folder, "--keep-alive", "10m")[0]
        assert silent.accept()[0].family == socket.AF_UNIX
    path.unlink()
