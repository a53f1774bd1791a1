"""`swiftchat serve`, `ps` and `stop` as processes, and chats that attach."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from swiftchat.chat.model import engine_start as start_module
from swiftchat.engine.api import attach as attach_module
from swiftchat.engine.api.attach import attach
from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.engine_key import engine_key
from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.api.protocol import Tokens
from swiftchat.engine.api.runtime_folder import RuntimeFolder
from swiftchat.engine.api.serve_config import ServeConfig
from swiftchat.errors import EngineStopped
from tests.support.remote_engine import chat_model_folder
from tests.support.serve_processes import END_S, ServeProcess, serve_process, swiftchat
from tests.support.worker_processes import ENDLESS, GREEDY, collect, has_ended, wait_until

OPTIONS = ("--device", "cpu", "--dtype", "float32", "--threads", "1")
CONFIG = EngineConfig(device="cpu", dtype="float32", num_threads=1)
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine of a busy machine does not answer at once."""
    monkeypatch.setattr(attach_module, "_ANSWER_S", 60.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny"
    path.mkdir()
    return chat_model_folder(path, max_position_embeddings=50000)


@pytest.fixture
def served(folder: Path) -> Iterator[ServeProcess]:
    with serve_process(str(folder), *OPTIONS) as process:
        yield process


def listed() -> list[dict[str, Any]]:
    result = swiftchat("ps", "--json")
    assert result.returncode == 0, result.stderr
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def answer(folder: Path, *options: str) -> str:
    args = ("-m", str(folder), *options, "-p", "hello", "--temp", "0", "-n", "8", "--json")
    result = swiftchat(*args)
    assert result.returncode == 0, result.stderr
    content: str = json.loads(result.stdout)["content"]
    return content


def num_attached() -> int:
    (engine,) = listed()
    return int(engine["num_terminals"])


def test_chats_with_the_same_options_attach(served: ServeProcess, folder: Path) -> None:
    expected = answer(folder, *OPTIONS, "--no-attach")
    with closing(_attached(folder)) as client:
        before = client.stats()["computed_tokens"]
        assert answer(folder, *OPTIONS) == expected
        attached = client.stats()["computed_tokens"]
        assert attached > before
        for other in ([*OPTIONS, "--no-attach"], [*OPTIONS, "--ctx-size", "4096"]):
            assert answer(folder, *other) == expected
        assert client.stats()["computed_tokens"] == attached
        assert num_attached() == 1
    wait_until(lambda: num_attached() == 0, END_S)


def test_an_attached_chat_imports_nothing_that_reads_weights(
    served: ServeProcess, folder: Path
) -> None:
    """numpy and torch take longer to import than the answer begins to come."""
    args = ["swiftchat", "-m", str(folder), *OPTIONS, "-p", "hello", "-n", "2"]
    script = (
        f"import sys; sys.argv = {args!r}\n"
        "from swiftchat.chat.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'torch', 'numpy', 'rich', 'prompt_toolkit', 'requests'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", script], stdin=subprocess.DEVNULL)
    assert result.returncode == 0


def test_an_option_of_the_environment_or_the_file_attaches_too(folder: Path) -> None:
    config = Path(os.environ["XDG_CONFIG_HOME"]) / "swiftchat" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('device = "cpu"\ndtype = "float32"\n')
    variables = {"SWIFTCHAT_MODEL": str(folder), "SWIFTCHAT_THREADS": "1"}
    with serve_process(**variables), closing(_attached(folder)) as client:
        assert collect(client.generate([5], GREEDY))


def _attached(folder: Path) -> EngineClient:
    client = attach(CONFIG, folder)
    assert client is not None
    return client


def test_ps_lists_name_process_memory_idle_time_and_address(
    served: ServeProcess, folder: Path
) -> None:
    (engine,) = listed()
    worker = psutil.Process(engine["pid"])
    assert worker.ppid() == served.process.pid and engine["name"] == "tiny"
    assert engine["memory_bytes"] > 10_000_000 and engine["idle_s"] > 0
    heading, row = swiftchat("ps").stdout.decode().splitlines()
    titles = ["NAME", "PID", "DEVICE", "MEMORY", "IDLE", "ENDS", "TERMINALS", "ADDRESS"]
    assert heading.split() == titles
    assert row.startswith("tiny ") and row.endswith(engine["socket"])
    assert " cpu " in row and " when stopped " in row
    with closing(_attached(folder)) as client:
        next(iter(client.generate([5], ENDLESS)))
        assert "computing" in swiftchat("ps").stdout.decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_a_normal_end(served: ServeProcess, number: signal.Signals) -> None:
    (engine,) = listed()
    assert served.end(number) == 0
    assert "Traceback" not in served.log and "error" not in served.log
    wait_until(lambda: has_ended(engine["pid"]), END_S)
    assert listed() == [] and not Path(engine["socket"]).exists()


def test_ctrl_c_while_loading_is_a_normal_end(folder: Path) -> None:
    with serve_process(str(folder), *OPTIONS, ready=False) as process:
        wait_until(listed, END_S)
        assert process.end() == 0, process.log
    assert "Traceback" not in process.log
    wait_until(lambda: listed() == [], END_S)


def test_stop_ends_the_engine_and_its_chats(served: ServeProcess, folder: Path) -> None:
    with closing(_attached(folder)) as client:
        events = iter(client.generate([5], ENDLESS))
        while not isinstance(next(events), Tokens):
            pass
        result = swiftchat("stop", "TINY")
        assert (result.returncode, result.stderr) == (0, b"stopped tiny\n")
        with pytest.raises(EngineStopped, match="ended by swiftchat stop"):
            list(events)
    assert served.process.wait(END_S) == 0
    assert served.log.endswith("the engine was ended by swiftchat stop\n")


def test_stop_without_a_name(served: ServeProcess, folder: Path) -> None:
    with serve_process(str(folder), *OPTIONS, "--ctx-size", "4096") as other:
        pids = {engine["pid"] for engine in listed()}
        assert len(pids) == 2
        for args in ((), ("tiny",)):
            result = swiftchat("stop", *args)
            assert result.returncode == 2 and b"2 engines are running" in result.stderr
            assert all(str(pid).encode() in result.stderr for pid in pids)
        assert swiftchat("stop", "--all").returncode == 0
        assert served.process.wait(END_S) == other.process.wait(END_S) == 0
    for args in ((), ("tiny",)):
        result = swiftchat("stop", *args)
        assert result.returncode == 2 and b"no engine is running" in result.stderr
    assert swiftchat("stop", "--all").returncode == 0
    assert swiftchat("stop", "--all", "tiny").returncode == 2
    assert b"no engine is running" in swiftchat("ps").stderr


def test_stop_by_process_id(served: ServeProcess) -> None:
    assert b"running: tiny" in swiftchat("stop", "other").stderr
    (engine,) = listed()
    assert swiftchat("stop", str(engine["pid"])).returncode == 0
    assert served.process.wait(END_S) == 0


def test_a_second_serve_of_the_same_model_is_refused(served: ServeProcess, folder: Path) -> None:
    (engine,) = listed()
    result = swiftchat("serve", str(folder), *OPTIONS)
    assert result.returncode == 4
    assert f"already running (process {engine['pid']})" in result.stderr.decode()
    assert [one["pid"] for one in listed()] == [engine["pid"]]


def test_killed_engines_leave_only_a_stale_socket(served: ServeProcess, folder: Path) -> None:
    """A killed `serve` ends its engine; a killed engine ends its `serve`."""
    (engine,) = listed()
    os.kill(engine["pid"], signal.SIGKILL)
    assert served.process.wait(END_S) == 4
    assert "the engine process ended: signal 9 (SIGKILL)" in served.log
    assert Path(engine["socket"]).exists()
    assert attach(CONFIG, folder) is None
    assert listed() == [] and not Path(engine["socket"]).exists()
    with serve_process(str(folder), *OPTIONS) as process:
        (engine,) = listed()
        process.process.kill()
        wait_until(lambda: has_ended(engine["pid"]), END_S)
    assert not Path(engine["socket"]).exists()


def test_a_chat_starts_its_own_engine_if_the_running_one_does_not_answer(
    served: ServeProcess, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (engine,) = listed()
    processes = (served.process.pid, engine["pid"])  # `serve` would kill a stopped engine
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    try:
        monkeypatch.setattr(attach_module, "_ANSWER_S", 0.5)
        monkeypatch.setattr(attach_module, "_START_S", 0.5)
        assert attach(CONFIG, folder) is None
        (stopped,) = listed()
        assert stopped.keys() == {"socket"}
        assert b"no answer" in swiftchat("ps").stdout
        assert answer(folder, *OPTIONS)
    finally:
        for pid in reversed(processes):
            os.kill(pid, signal.SIGCONT)


def test_keep_alive_ends_an_unused_engine(folder: Path) -> None:
    with serve_process(str(folder), *OPTIONS, "--keep-alive", "2s", ready=False) as process:
        process.wait_for("it is not used for 2 s")
        assert process.process.wait(END_S) == 0
    assert process.log.endswith("the engine ended: it was not used for 2 s\n")
    assert listed() == []


def test_a_connected_chat_keeps_the_engine_alive(folder: Path) -> None:
    serve = ServeConfig(str(_socket()), "tiny", keep_alive_s=0.5)
    with EngineClient(CONFIG, folder, serve=serve) as owner:
        owner.wait_ready()
        with closing(EngineClient(CONFIG, folder, _remote()).start()) as client:
            client.wait_ready()
            wait_until(lambda: owner.stats() and listed()[0]["idle_s"] > 1.5, END_S)
            assert collect(client.generate([5], GREEDY))
        reason = owner.wait_ended()
    assert isinstance(reason, EngineStopped)


def _socket() -> Path:
    folder = RuntimeFolder()
    folder.create()
    return folder.socket("chosen")


def _remote() -> Any:
    engine = attach_module.connect(_socket(), RuntimeFolder())
    engine.start_session()
    return engine


@pytest.mark.parametrize("time", ["0s", "10", "ten", "-1m", ""])
def test_wrong_times_are_usage_errors(time: str) -> None:
    result = swiftchat("serve", "--keep-alive", time)
    assert result.returncode == 2 and b"is not a time such as 90s, 10m, 2h or 7d" in result.stderr


def test_a_folder_that_others_can_enter_is_refused(folder: Path) -> None:
    """`serve`, `ps` and `stop` refuse; a chat warns and loads the model itself."""
    runtime = RuntimeFolder()
    runtime.create()
    runtime.path.chmod(0o755)
    for args in (("ps",), ("stop", "--all"), ("serve", str(folder))):
        result = swiftchat(*args)
        assert result.returncode == 8 and b"its mode is 755, not 700" in result.stderr


def test_a_chat_does_not_attach_to_a_socket_of_another_user(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It warns and starts an engine of its own."""
    runtime = RuntimeFolder()
    runtime.create()
    path = runtime.socket(engine_key(folder, CONFIG, os.environ))
    monkeypatch.setattr(start_module, "start_engine", lambda config, path: "its own")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        assert start_module.attach_or_start(CONFIG, folder) == "its own"
    assert "not a folder of this user" in capsys.readouterr().err


def test_loading_errors_end_serve_with_their_code(folder: Path) -> None:
    result = swiftchat("serve", str(folder), "--device", "cpu", "--dummy", "no-such-shape")
    assert result.returncode in (2, 3, 7) and result.stderr.decode().count("error: ") == 1
    assert listed() == []


def test_a_quiet_engine_says_nothing_but_its_end(folder: Path) -> None:
    with serve_process(str(folder), "-q", *OPTIONS, ready=False) as quiet:
        wait_until(lambda: swiftchat("stop").returncode == 0, END_S)
        assert quiet.process.wait(END_S) == 0
        assert quiet.log == "the engine was ended by swiftchat stop\n"


def test_an_engine_that_is_stopped_when_it_is_ready_is_not_started_again(folder: Path) -> None:
    """`serve` learns that it is ready and that it has ended at the same time."""
    with serve_process(str(folder), "-q", *OPTIONS, ready=False) as serve:
        wait_until(listed, END_S)
        serve.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: listed()[0]["device"], END_S)
        assert swiftchat("stop").returncode == 0
        serve.process.send_signal(signal.SIGCONT)
        assert serve.process.wait(END_S) == 0
        assert serve.log == "the engine was ended by swiftchat stop\n"
