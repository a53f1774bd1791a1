"""`serve --openai` without a model: every installed model behind one API, as processes."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import openai
import pytest

from swiftchat.chat.model.model_server import ModelServer
from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import EngineConfig
from swiftchat.errors import UsageError
from tests.support.remote_engine import chat_model_folder
from tests.support.serve_processes import END_S, ServeProcess, serve_process, swiftchat
from tests.support.worker_processes import running_programs, wait_until

OPTIONS = ("--device", "cpu", "--dtype", "float32", "--threads", "1")
TOKEN = "0123456789abcdef"
NAMES = ("alpha", "beta", "gamma")
# The penalty repeats the prompt's tokens, among which is no end token.
ENDLESS: Any = {
    "prompt": "hello",
    "temperature": 0,
    "presence_penalty": -100.0,
    "extra_body": {"loop_stop": "off", "overflow": "sliding"},
}
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models that answer differently."""
    folder = tmp_path_factory.mktemp("models")
    for number, name in enumerate(NAMES, 1):
        (folder / name).mkdir()
        chat_model_folder(folder / name, max_position_embeddings=50000, num_hidden_layers=number)
    return folder


@pytest.fixture(autouse=True)
def _store(models: Path) -> None:
    data = Path(os.environ["XDG_DATA_HOME"]) / "swiftchat"
    data.mkdir(parents=True)
    (data / "models").symlink_to(models)


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Iterator[ServeProcess]:
    """A server with at most so many models as the parameter says, by default two."""
    options = ("--openai", "127.0.0.1:0", "--max-models", str(getattr(request, "param", 2)))
    with serve_process(*OPTIONS, *options, ready=False, SWIFTCHAT_API_TOKEN=TOKEN) as process:
        process.wait_for("OpenAI-compatible API")
        yield process
        process.end()
    wait_until(lambda: not running_programs(), END_S)


@pytest.fixture
def client(served: ServeProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=url_of(served), api_key=TOKEN, max_retries=0)


def url_of(served: ServeProcess) -> str:
    return served.wait_for(r"(http://\S+)")


def answer(client: openai.OpenAI, model: str) -> str | None:
    messages: Any = [{"role": "user", "content": "hello"}]
    found = client.chat.completions.create(
        model=model, messages=messages, temperature=0, max_tokens=8
    )
    assert found.model == model
    return found.choices[0].message.content


def engines() -> dict[str, int]:
    """Return the process ids of the running engines, by name."""
    rows = json.loads(swiftchat("ps", "--json").stdout)
    return {row["name"]: row["pid"] for row in rows}


def test_each_model_is_loaded_on_demand_and_the_oldest_leaves(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == list(NAMES)
    assert client.models.retrieve("beta").id == "beta" and engines() == {}
    answers = {name: answer(client, name) for name in ("alpha", "beta")}
    assert engines().keys() == {"alpha", "beta"}
    for name in ("beta", "alpha"):  # beta is the oldest now
        assert answer(client, name) == answers[name]
    answers["gamma"] = answer(client, "gamma")
    assert engines().keys() == {"alpha", "gamma"}
    assert len(set(answers.values())) == len(NAMES)


def test_what_is_not_installed(client: openai.OpenAI, models: Path) -> None:
    """Also a path, which -m would take."""
    for name in ("delta", "alph", str(models / "alpha"), "./alpha", "", "x" * 5000):
        with pytest.raises(
            openai.NotFoundError, match=r"is not installed.*GET /v1/models"
        ) as caught:
            answer(client, name)
        assert caught.value.code == "model_not_found" and caught.value.param == "model"
    with pytest.raises(openai.NotFoundError, match="similar: alpha"):
        client.models.retrieve("alphs")
    assert engines() == {}


@pytest.mark.parametrize("served", [1], indirect=True)
def test_a_model_that_answers_does_not_leave(client: openai.OpenAI) -> None:
    """The request for another model waits; new ones for the first come after it."""
    stream = client.completions.create(model="alpha", stream=True, **ENDLESS)
    pieces = iter(stream)
    next(pieces)
    with ThreadPoolExecutor(2) as executor:
        other = executor.submit(answer, client, "beta")
        for _ in range(500):
            next(pieces)
        again = executor.submit(answer, client, "alpha")
        assert not other.done() and engines().keys() == {"alpha"}
        stream.close()
        assert other.result(END_S) != again.result(END_S)


def test_others_answer_while_one_is_loaded(served: ServeProcess, client: openai.OpenAI) -> None:
    expected = answer(client, "alpha")
    ends = threading.Event()

    def load() -> str | None:
        try:
            return answer(client, "beta")
        finally:
            ends.set()

    with ThreadPoolExecutor(1) as executor:
        other = executor.submit(load)
        num_answers = 0
        while not ends.is_set():
            assert answer(client, "alpha") == expected
            num_answers += 1
        assert other.result() != expected and num_answers > 1


def test_requests_at_the_same_time_load_a_model_once(
    served: ServeProcess, client: openai.OpenAI
) -> None:
    with ThreadPoolExecutor(4) as executor:
        answers = set(executor.map(lambda _: answer(client, "alpha"), range(4)))
    assert len(answers) == 1 and served.log.count("alpha is loaded") == 1


def test_a_dying_engine_is_started_anew(client: openai.OpenAI) -> None:
    expected = answer(client, "alpha")
    pid = engines()["alpha"]
    pieces = iter(client.completions.create(model="alpha", stream=True, **ENDLESS))
    next(pieces)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(openai.APIError, match="signal 9"):
        for _ in pieces:
            pass
    assert answer(client, "alpha") == expected
    assert engines()["alpha"] != pid


def test_an_engine_that_was_stopped_makes_room(client: openai.OpenAI) -> None:
    for name in ("alpha", "beta"):
        answer(client, name)
    assert swiftchat("stop", "beta").returncode == 0
    answer(client, "gamma")
    assert engines().keys() == {"alpha", "gamma"}


@pytest.mark.parametrize("served", [1], indirect=True)
def test_chats_attach_and_keep_their_model(served: ServeProcess, client: openai.OpenAI) -> None:
    url, token = url_of(served), {"SWIFTCHAT_API_TOKEN": TOKEN}
    args = ("-p", "hello", "--temp", "0", "-n", "8")
    found = swiftchat("--connect", url, "-m", "alpha", *args, **token)
    assert found.returncode == 0, found.stderr
    assert found.stdout.decode().rstrip("\n") == (answer(client, "alpha") or "").rstrip("\n")
    unknown = swiftchat("--connect", url, "-m", "delta", *args, **token)
    assert unknown.returncode == 3 and b"'delta' is not installed" in unknown.stderr
    several = swiftchat("--connect", url, *args, **token)
    assert several.returncode == 2 and b"add -m: alpha, beta, gamma" in several.stderr
    wrong = swiftchat("--connect", url, "-m", "alpha", *args, SWIFTCHAT_API_TOKEN="x" * 16)
    assert wrong.returncode == 2 and b"the bearer token is missing or wrong" in wrong.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SWIFTCHAT_API_TOKEN", TOKEN)
        remote = ModelServer(url, None).connect("alpha")
    remote.start_session()
    with closing(EngineClient(EngineConfig(), Path(), remote).start()) as chat:
        chat.wait_ready()
        with pytest.raises(openai.APIStatusError, match="chats use all loaded models") as caught:
            answer(client, "beta")
        assert caught.value.status_code == 503
    wait_until(lambda: json.loads(swiftchat("ps", "--json").stdout)[0]["num_terminals"] == 0)
    assert answer(client, "beta")


def test_a_chat_finds_a_new_token_by_the_port() -> None:
    with serve_process(*OPTIONS, "--openai", "127.0.0.1:0", ready=False) as process:
        url = process.wait_for(r"(http://\S+)")
        process.wait_for("token: ")
        done = swiftchat("--connect", url, "-m", "alpha", "-p", "hello", "-n", "2")
        assert done.returncode == 0, done.stderr
        (file,) = (Path(os.environ["XDG_STATE_HOME"]) / "swiftchat").glob("engine-*.token")
        assert file.stat().st_mode & 0o777 == 0o600
        assert process.end() == 0
    assert not file.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_engines_end_with_the_server(
    served: ServeProcess, client: openai.OpenAI, number: signal.Signals
) -> None:
    for name in ("alpha", "beta"):
        answer(client, name)
    assert len(engines()) == 2
    assert served.end(number) == (-number if number == signal.SIGKILL else 0)
    wait_until(lambda: not running_programs(), END_S)
    assert engines() == {}


def test_only_all_models_have_a_maximum(models: Path) -> None:
    result = swiftchat(
        "serve", str(models / "alpha"), "--openai", "127.0.0.1:0", "--max-models", "2"
    )
    assert result.returncode == 2 and b"--max-models is for all installed models" in result.stderr


def test_the_server_of_one_model_lets_chats_attach(models: Path) -> None:
    options = (str(models / "alpha"), *OPTIONS, "--openai", "127.0.0.1:0")
    with serve_process(*options, SWIFTCHAT_API_TOKEN=TOKEN) as process:
        url = url_of(process)
        done = swiftchat("--connect", url, "-p", "x", "-n", "2", SWIFTCHAT_API_TOKEN=TOKEN)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("url", ["http://", "http://127.0.0.1", "http:///v1"])
def test_a_url_without_a_port(url: str) -> None:
    with pytest.raises(UsageError):
        ModelServer(url, None)
