"""The HTTP API with real clients: the packages `openai` and `anthropic`, and `llm`."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, IncompleteRead
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from swiftchat.engine.api.attach import attach
from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import EngineConfig
from tests.support.remote_engine import chat_model_folder
from tests.support.serve_processes import END_S, ServeProcess, serve_process, swiftchat
from tests.support.worker_processes import wait_until

OPTIONS = ("--device", "cpu", "--dtype", "float32", "--threads", "1")
CONFIG = EngineConfig(device="cpu", dtype="float32", num_threads=1)
TOKEN = "0123456789abcdef"
HELLO: list[Any] = [{"role": "user", "content": "hello"}]
# The penalty repeats the prompt's tokens, among which is no end token.
ENDLESS: Any = {
    "model": "tiny",
    "prompt": "hello",
    "temperature": 0,
    "presence_penalty": -100.0,
    "loop_stop": "off",
    "overflow": "sliding",
}
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny"
    path.mkdir()
    return chat_model_folder(path, max_position_embeddings=50000)


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with TemporaryDirectory(prefix="run-") as folder:
        yield folder


@pytest.fixture(scope="module")
def served(folder: Path, runtime: str) -> Iterator[ServeProcess]:
    environ = {"SWIFTCHAT_API_TOKEN": TOKEN, "XDG_RUNTIME_DIR": runtime}
    with serve_process(str(folder), *OPTIONS, "--openai", "127.0.0.1:0", **environ) as process:
        process.wait_for("OpenAI-compatible API")
        yield process


@pytest.fixture
def client(served: ServeProcess) -> openai.OpenAI:
    url = served.wait_for(r"(http://\S+)")
    return openai.OpenAI(base_url=url, api_key=TOKEN, max_retries=0)


@pytest.fixture
def engine(
    served: ServeProcess, folder: Path, runtime: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[EngineClient]:
    """A client of the engine behind the API."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    attached = attach(CONFIG, folder)
    assert attached is not None
    with closing(attached):
        yield attached


def complete(client: openai.OpenAI, **options: Any) -> Any:
    options = {"model": "tiny", "messages": HELLO, "temperature": 0, "max_tokens": 12} | options
    return client.chat.completions.create(**options)


def tokens_of(completion: Any) -> list[list[int]]:
    return [one.bytes for one in completion.choices[0].logprobs.content]


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == "tiny" == client.models.retrieve("tiny").id
    for use in (lambda: client.models.retrieve("other"), lambda: complete(client, model="other")):
        with pytest.raises(openai.NotFoundError, match="is not served, only 'tiny'") as caught:
            use()
        assert caught.value.code == "model_not_found"


def test_an_answer_equals_that_of_a_one_shot(client: openai.OpenAI, folder: Path) -> None:
    result = swiftchat(
        *("-m", str(folder), *OPTIONS, "--no-attach"),
        *("-p", "hello", "--temp", "0", "-n", "12", "--json"),
    )
    report = json.loads(result.stdout)
    answer = complete(client)
    assert answer.choices[0].message.content == report["content"]
    assert answer.choices[0].finish_reason == report["finish_reason"] == "length"
    assert answer.usage.prompt_tokens == report["usage"]["prompt_tokens"]
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12


def test_a_stream_equals_the_whole_answer(client: openai.OpenAI) -> None:
    whole = complete(client, logprobs=True, top_logprobs=3)
    options = {"logprobs": True, "top_logprobs": 3, "stream_options": {"include_usage": True}}
    *chunks, last = complete(client, stream=True, **options)
    choices = [chunk.choices[0] for chunk in chunks]
    assert choices[0].delta.role == "assistant"
    text = "".join(choice.delta.content or "" for choice in choices)
    assert text == whole.choices[0].message.content
    assert [choice.finish_reason for choice in choices][-2:] == [None, "length"]
    found = [
        one for choice in choices for one in (choice.logprobs and choice.logprobs.content) or []
    ]
    assert [one.bytes for one in found] == tokens_of(whole) and len(found) == 12
    assert all(len(one.top_logprobs) == 3 for one in found)
    assert all(one.logprob == max(other.logprob for other in one.top_logprobs) for one in found)
    assert last.choices == [] and last.usage.completion_tokens == 12
    assert all(chunk.usage is None for chunk in chunks)


def test_logit_bias_bans_and_prefers_token_ids(client: openai.OpenAI) -> None:
    plain = tokens_of(complete(client, logprobs=True))
    first = plain[0][0]
    banned = tokens_of(complete(client, logprobs=True, logit_bias={str(first): -100}))
    assert first not in [piece[0] for piece in banned if len(piece) == 1]
    wanted = tokens_of(complete(client, logprobs=True, logit_bias={str(ord("z")): 100}))
    assert set(map(tuple, wanted)) == {(ord("z"),)}


def test_requests_at_once_give_the_same_tokens_as_alone(
    client: openai.OpenAI, engine: EngineClient
) -> None:
    texts = [f"question {number} " * (number + 1) for number in range(6)]

    def answer(text: str) -> list[list[int]]:
        messages = [{"role": "user", "content": text}]
        return tokens_of(complete(client, messages=messages, logprobs=True, max_tokens=40))

    alone = list(map(answer, texts))
    with ThreadPoolExecutor(len(texts)) as pool:
        futures = [pool.submit(answer, text) for text in texts]
        wait_until(lambda: engine.stats()["running"] > 1 or all(f.done() for f in futures), END_S)
        assert [future.result() for future in futures] == alone
    assert len({str(tokens) for tokens in alone}) > 1


def test_sampling_parameters(client: openai.OpenAI) -> None:
    random = {"temperature": 1.5, "top_p": 0.9, "presence_penalty": 0.5, "frequency_penalty": 0.5}
    first, second = (complete(client, seed=7, **random) for _ in range(2))
    assert first.choices[0].message.content == second.choices[0].message.content
    other = complete(client, seed=8, extra_body={"top_k": 200, "min_p": 0.0}, **random)
    assert other.choices[0].message.content != first.choices[0].message.content
    text = complete(client).choices[0].message.content
    stopped = complete(client, stop=[text[5:8], "not in the answer"])
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].message.content == text[: text.index(text[5:8])]
    assert complete(client, max_tokens=None, max_completion_tokens=3).usage.completion_tokens == 3


def test_responses_equal_chats_and_go_on(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_output_tokens": 12}
    chat = complete(client)
    whole = client.responses.create(input="hello", **options)
    assert whole.output_text.strip() == chat.choices[0].message.content.strip()
    assert whole.status == "incomplete" and whole.usage is not None
    assert whole.usage.input_tokens == chat.usage.prompt_tokens
    with client.responses.stream(input="hello", **options) as stream:
        events: list[Any] = list(stream)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert events[-1].type == "response.incomplete"
    assert "".join(deltas) == events[-1].response.output_text == whole.output_text
    assert client.responses.retrieve(whole.id).output_text == whole.output_text
    second = client.responses.create(input="more", previous_response_id=whole.id, **options)
    answer = {"role": "assistant", "content": whole.output_text}
    messages = [*HELLO, answer, {"role": "user", "content": "more"}]
    assert second.output_text.strip() == (
        complete(client, messages=messages).choices[0].message.content.strip()
    )
    assert len(client.responses.input_items.list(second.id).data) == 3
    client.responses.delete(whole.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(whole.id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(input="more", previous_response_id=whole.id, **options)
    assert caught.value.param == "previous_response_id"


def test_messages_equal_chats(client: openai.OpenAI) -> None:
    anthropic = pytest.importorskip("anthropic")
    url = str(client.base_url).removesuffix("/v1/")
    theirs = anthropic.Anthropic(base_url=url, api_key=TOKEN, max_retries=0)
    options: dict[str, Any] = {"model": "tiny", "messages": HELLO}
    chat, greedy = complete(client), {"extra_body": {"temperature": 0}}
    whole = theirs.messages.create(max_tokens=12, **options, **greedy)
    assert whole.content[0].text.strip() == chat.choices[0].message.content.strip()
    assert whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 12
    with theirs.messages.stream(max_tokens=12, **options, **greedy) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text
    assert final.usage.output_tokens == 12
    assert theirs.messages.count_tokens(**options).input_tokens == chat.usage.prompt_tokens
    with pytest.raises(anthropic.AuthenticationError):
        theirs.with_options(api_key="wrong").messages.create(max_tokens=12, **options)
    with pytest.raises(anthropic.NotFoundError):
        theirs.messages.create(max_tokens=12, **options | {"model": "other"})


@contextmanager
def endless_request(url: str, token: str, is_stream: bool) -> Iterator[HTTPConnection]:
    """Send a request for an endless answer, over a connection that is closed in the end."""
    address = urlsplit(url)
    with closing(HTTPConnection(address.hostname or "", address.port, END_S)) as connection:
        body = json.dumps({**ENDLESS, "stream": is_stream})
        headers = {"Authorization": f"Bearer {token}"}
        connection.request("POST", f"{address.path}/completions", body, headers)
        yield connection


@pytest.mark.parametrize("is_stream", [True, False])
def test_disconnecting_cancels_the_generation(
    is_stream: bool, client: openai.OpenAI, engine: EngineClient
) -> None:
    with endless_request(str(client.base_url).rstrip("/"), TOKEN, is_stream):
        wait_until(lambda: engine.stats()["running"] == 1, END_S)
    wait_until(lambda: engine.stats()["running"] == 0, END_S)
    assert engine.stats()["waiting"] == 0
    assert complete(client).usage.completion_tokens == 12


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda n: n.name)
def test_the_end_of_the_engine_ends_a_stream(number: signal.Signals, folder: Path) -> None:
    """Ctrl-C in `serve` is a normal end, a killed engine an error."""
    with serve_process(str(folder), *OPTIONS, "--openai", "127.0.0.1:0") as process:
        token, url = process.wait_for(r"token: (\S+)"), process.wait_for(r"(http://\S+)")
        assert process.log.count(token) == 1
        (engine,) = json.loads(swiftchat("ps", "--json").stdout)
        assert engine["endpoint"] == url
        with endless_request(url, token, is_stream=True) as connection:
            response = connection.getresponse()
            assert response.read(6) == b"data: "
            os.kill(process.process.pid if number == signal.SIGINT else engine["pid"], number)
            with suppress(IncompleteRead, ConnectionError):
                assert b'"finish_reason": "stop"' not in response.read()
        assert process.process.wait(END_S) == (0 if number == signal.SIGINT else 4)
        assert "Traceback" not in process.log


def test_answers_match_their_response_format(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 22]}},
        "required": ["ok", "n"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = complete(client, response_format=wanted, temperature=1.5, max_tokens=100)
    found = json.loads(answer.choices[0].message.content)
    assert found.keys() == {"ok", "n"} and isinstance(found["ok"], bool) and found["n"] in (1, 22)
    started = complete(client, response_format={"type": "json_object"}, max_tokens=1)
    assert started.choices[0].message.content == "{"


def test_completions(client: openai.OpenAI) -> None:
    options: Any = {"model": "tiny", "temperature": 0, "max_tokens": 6}
    text = client.completions.create(prompt="Once upon", **options)
    ids = client.completions.create(prompt=list(b"Once upon"), **options)
    assert text.choices[0].text == ids.choices[0].text
    assert text.usage is not None and text.usage.prompt_tokens == 9
    stream = client.completions.create(prompt="Once upon", stream=True, logprobs=2, **options)
    choices = [chunk.choices[0] for chunk in stream]
    assert "".join(choice.text for choice in choices) == text.choices[0].text
    assert choices[-1].finish_reason == "length"
    found = [choice.logprobs for choice in choices if choice.logprobs]
    assert sum(len(one.tokens or ()) for one in found) == 6


def test_several_answers_have_consecutive_seeds(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"temperature": 1, "logprobs": True}
    alone = [complete(client, seed=seed, **options) for seed in (5, 6, 7)]
    whole = complete(client, seed=5, n=3, **options)
    assert [one.index for one in whole.choices] == [0, 1, 2]
    for choice, one in zip(whole.choices, alone, strict=True):
        assert choice.message.content == one.choices[0].message.content
        assert choice.logprobs == one.choices[0].logprobs
    assert whole.usage.prompt_tokens == alone[0].usage.prompt_tokens
    assert whole.usage.completion_tokens == sum(one.usage.completion_tokens for one in alone)
    streamed: list[list[Any]] = [[], [], []]
    for chunk in complete(client, seed=5, n=3, stream=True, **options):
        streamed[chunk.choices[0].index].append(chunk.choices[0])
    for choices, expected in zip(streamed, whole.choices, strict=True):
        assert choices[0].delta.role == "assistant"
        assert "".join(one.delta.content or "" for one in choices) == expected.message.content
        assert [one.finish_reason for one in choices][-2:] == [None, expected.finish_reason]
        found = [token for one in choices if one.logprobs for token in one.logprobs.content]
        assert found == expected.logprobs.content


def test_the_beams_of_a_search(client: openai.OpenAI, folder: Path) -> None:
    result = swiftchat(
        *("-m", str(folder), *OPTIONS, "--no-attach", "--no-template", "-p", "Once upon"),
        *("--beams", "3", "--samples", "2", "-n", "6", "--early-stopping", "true", "--json"),
    )
    expected = [one["content"] for one in json.loads(result.stdout)["answers"]]
    options: dict[str, Any] = {"model": "tiny", "prompt": "Once upon", "n": 2, "max_tokens": 6}
    options["extra_body"] = {"beams": 3, "early_stopping": True}
    whole = client.completions.create(best_of=2, **options)
    assert [one.text for one in whole.choices] == expected and len(set(expected)) == 2
    assert whole.usage is not None and whole.usage.completion_tokens == 12
    texts = ["", ""]
    for chunk in client.completions.create(stream=True, **options):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == expected


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"not": {}}},
                }
            },
            "response_format",
        ),
        ({"n": 65}, "n"),
        ({"n": 2}, None),  # greedy: both would be the same
        ({"n": 3, "extra_body": {"beams": 2}}, "n"),
        ({"extra_body": {"diversity_rate": 2}}, "diversity_rate"),
        ({"extra_body": {"beams": 2}, "logprobs": True}, None),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"five": 1}}, "logit_bias"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"stop": [""]}, "stop"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
    ],
    ids=str,
)
def test_what_is_not_supported_is_refused(
    options: dict[str, Any], param: str | None, client: openai.OpenAI
) -> None:
    for is_stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            complete(client, stream=is_stream, **options)
        assert caught.value.type == "invalid_request_error" and caught.value.param == param


def test_a_prompt_longer_than_the_context(client: openai.OpenAI) -> None:
    long = [{"role": "user", "content": "x" * 60_000}]
    for is_stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="the context") as caught:
            complete(client, messages=long, stream=is_stream)
        assert caught.value.code == "context_length_exceeded"


def test_a_wrong_token_is_refused(client: openai.OpenAI) -> None:
    for token in ("wrong", TOKEN + "x", TOKEN[:-1]):
        with pytest.raises(openai.AuthenticationError) as caught:
            complete(client.with_options(api_key=token))
        assert caught.value.code == "invalid_api_key"


def test_llm(served: ServeProcess, client: openai.OpenAI, tmp_path: Path) -> None:
    url = served.wait_for(r"(http://\S+)")
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: local\n  model_name: tiny\n  api_base: {url}\n  api_key_name: local\n"
    )
    (tmp_path / "keys.json").write_text(json.dumps({"local": TOKEN}))
    expected = complete(client).choices[0].message.content
    for option in ((), ("--no-stream",)):
        command = [sys.executable, "-m", "llm", "-m", "local", "hello", *option]
        result = subprocess.run(
            [*command, "-o", "temperature", "0", "-o", "max_tokens", "12"],
            env=os.environ | {"LLM_USER_PATH": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
        assert result.returncode == 0, result.stderr
        assert result.stdout.decode().strip() == expected.strip()
