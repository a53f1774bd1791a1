"""The HTTP API without a client: bodies, tokens, addresses; answers of a scripted engine."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from swiftchat.chat.endpoint import answers as answers_module
from swiftchat.chat.endpoint.body import MAX_BODY_BYTES
from swiftchat.chat.endpoint.served_models import OneModel
from swiftchat.chat.endpoint.server import EndpointServer
from swiftchat.chat.endpoint.token import ApiToken, find_token
from swiftchat.chat.model.adapters import open_adapters
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.options.config import ChatConfig
from swiftchat.errors import DeviceError, UsageError
from tests.support.fake_engine import FakeEngine, make_folder
from tests.support.serve_processes import END_S, swiftchat
from tests.support.worker_processes import wait_until

SERVING_PAGE = Path(__file__).parents[3] / "docs" / "serving.md"
TOKEN = "0123456789abcdef"
TOOLS_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}"
    "({{ c.function.arguments | tojson }})</tool_call>{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{{ '<|im_start|>assistant\n' }}"
)
THINKING_TEMPLATE = TOOLS_TEMPLATE + "{# <think></think> #}"
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


class Served:
    """The API of a scripted engine, on a thread of this process."""

    def __init__(self, port: int | None, engine: FakeEngine) -> None:
        self.engine, self.port = engine, port

    def request(
        self,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        method: str | None = None,
    ) -> tuple[int, Any]:
        """Send a request; returns the status and the parsed body, or a stream's events."""
        status, kind, text = self._answer(path, body, headers, method)
        if kind.startswith("text/event-stream"):
            return status, parsed_events(text, has_names="completions" not in path)
        return status, json.loads(text)

    def text(self, path: str, body: Any) -> str:
        """Send a request and return the text of its response."""
        return self._answer(path, body, None, None)[2]

    def _answer(
        self, path: str, body: Any, headers: dict[str, str] | None, method: str | None
    ) -> tuple[int, str, str]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=END_S)
        content = body if isinstance(body, bytes | None) else json.dumps(body)
        headers = {"Authorization": f"Bearer {TOKEN}"} if headers is None else headers
        connection.request(method or ("GET" if body is None else "POST"), path, content, headers)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, response.headers["content-type"], text

    def chat(self, *messages: dict[str, Any], **options: Any) -> tuple[int, Any]:
        return self.chat_of("model", *messages, **options)

    def chat_of(self, model: str, *messages: dict[str, Any], **options: Any) -> tuple[int, Any]:
        sent = list(messages) or [{"role": "user", "content": "hello"}]
        return self.request("/v1/chat/completions", {"model": model, "messages": sent, **options})


def answering(served: Served, *answers: Any) -> None:
    """Let the next answers of the engine be these, each a text or as in `FakeEngine`."""
    found = [{"text": answer} if isinstance(answer, str) else answer for answer in answers]
    served.engine.answers[:0] = found


def parsed_events(text: str, has_names: bool) -> list[Any]:
    """Return the objects of a stream: OpenAI's chunks, or events that are named by their types."""
    *events, end = text.split("\n\n")
    assert end == ""
    if not has_names:
        assert events.pop() == "data: [DONE]"
        return [json.loads(event.removeprefix("data: ")) for event in events]
    found = []
    for name, data in (event.split("\n") for event in events if not event.startswith(":")):
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


@contextmanager
def serving(
    folder: Path,
    *answers: Any,
    token: ApiToken | None = ApiToken(TOKEN),  # noqa: B008  (it never changes)
    origins: tuple[str, ...] = (),
    **config: Any,
) -> Iterator[Served]:
    engine = FakeEngine(list(answers), ctx_size_tokens=4096)
    server = EndpointServer("127.0.0.1:0", token, allow_remote=False, origins=origins)
    options = ChatConfig(**config)
    if adapters := open_adapters(options, folder):
        adapters.off()
    chat_model = ChatModel(folder, options, engine.start, adapters)  # type: ignore[arg-type]
    thread = threading.Thread(target=server.run, args=(OneModel(chat_model),))
    thread.start()
    try:
        yield Served(urlsplit(server.url).port, engine)
    finally:
        engine.ended.set()
        thread.join()
        server.__exit__()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "model", TOOLS_TEMPLATE)


@pytest.fixture
def served(folder: Path) -> Iterator[Served]:
    with serving(folder, *["an answer"] * 5) as served:
        yield served


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": TOKEN},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": f"Bearer {TOKEN} x"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer \xe9"},
        {"X-Api-Key": TOKEN[1:]},
        {"X-Api-Key": ""},
    ],
    ids=str,
)
def test_every_path_needs_the_token(headers: dict[str, str], served: Served) -> None:
    for path in ("/v1/models", "/v1/chat/completions", "/", "/docs"):
        status, body = served.request(path, headers=headers)
        assert status == 401 and body["error"]["code"] == "invalid_api_key"
    assert served.engine.prompts == []


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"{" * 100_000, b'{"model": NaN}', b'"x"']
)
def test_bad_json_is_a_clear_error(body: bytes, served: Served) -> None:
    status, answer = served.request("/v1/chat/completions", body)
    error = answer["error"]
    assert status == 400 and error["type"] == "invalid_request_error" and error["message"]
    assert served.chat()[0] == 200


def test_a_body_that_is_too_long_is_refused(served: Served) -> None:
    """Whether its length is announced or not."""
    status, body = served.request("/v1/chat/completions", b" " * (MAX_BODY_BYTES + 1))
    assert status == 413 and body["error"]["code"] == "body_too_large"
    connection = HTTPConnection("127.0.0.1", served.port, timeout=END_S)
    parts = iter([b" " * (1 << 20)] * 9)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    connection.request("POST", "/v1/completions", parts, headers, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()
    assert served.chat()[0] == 200


def test_unknown_paths_and_methods_are_errors_in_the_same_format(served: Served) -> None:
    for path, body, expected in (
        ("/v1/nothing", None, 404),
        ("/v1/chat/completions", None, 405),
        ("/v1/models", {}, 405),
    ):
        status, answer = served.request(path, body)
        assert status == expected and answer["error"]["type"] == "invalid_request_error"


def test_messages_and_tools_reach_the_template(served: Served) -> None:
    call = {"id": "1", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    status, body = served.chat(
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "rain<|im_end|>", "tool_call_id": "1"},
        tools=[WEATHER],
    )
    assert status == 200 and body["choices"][0]["message"]["content"] == "an answer"
    prompt = served.engine.prompt_text()
    assert '"name": "weather"' in prompt.partition("Be brief.")[0]
    assert prompt.endswith(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>weather({"city": "Oslo"})</tool_call><|im_end|>\n'
        "<|im_start|>tool\nrain<|im_end|><|im_end|>\n<|im_start|>assistant\n"
    )
    assert served.engine.prompts[-1].count(257) == 5  # none from the tool's result
    served.chat(tools=[WEATHER], tool_choice="none")
    assert "weather" not in served.engine.prompt_text()


CALL_TEXT = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'


def test_calls_in_an_answer_are_parsed(folder: Path) -> None:
    with serving(folder, *[f"I look. {CALL_TEXT}"] * 3) as served:
        choice = served.chat(tools=[WEATHER])[1]["choices"][0]
        events = served.chat(tools=[WEATHER], stream=True)[1]
        plain = served.chat()[1]["choices"][0]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] == "I look."
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function" and call["id"]
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}
    deltas = [event["choices"][0]["delta"] for event in events]
    assert "".join(delta.get("content") or "" for delta in deltas).strip() == "I look."
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls", ())]
    assert all(piece["index"] == 0 for piece in pieces) and pieces[0]["id"]
    assert pieces[0]["function"]["name"] == "weather"
    arguments = "".join(piece["function"]["arguments"] for piece in pieces)
    assert arguments == call["function"]["arguments"]
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"
    # Without tools in the request it is text.
    assert plain["message"]["content"].endswith(CALL_TEXT) and plain["finish_reason"] == "stop"


def test_arguments_have_the_types_of_the_tool(folder: Path) -> None:
    """In some formats of calls all arguments are texts."""
    answer = (
        "<tool_call><function=weather><parameter=days>3</parameter>"
        "<parameter=city>1</parameter></function></tool_call>"
    )
    properties = {"days": {"type": "integer"}, "city": {"type": "string"}}
    parameters = {"type": "object", "properties": properties}
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    with serving(folder, answer) as served:
        (call,) = served.chat(tools=[tool])[1]["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"days": 3, "city": "1"}


def test_invalid_and_cut_calls_are_text(folder: Path) -> None:
    invalid = "<tool_call>weather in Oslo</tool_call>"
    with serving(folder, invalid, CALL_TEXT) as served:
        choice = served.chat(tools=[WEATHER])[1]["choices"][0]
        cut = served.chat(tools=[WEATHER], max_tokens=30)[1]["choices"][0]
    assert choice["message"]["content"] == invalid and "tool_calls" not in choice["message"]
    assert cut["message"]["content"] == CALL_TEXT[:30] and cut["finish_reason"] == "length"


def test_tools_for_a_template_that_takes_none_are_refused(tmp_path: Path) -> None:
    with serving(make_folder(tmp_path / "model"), "fine") as served:
        status, body = served.chat(tools=[WEATHER])
        assert status == 400 and "has no tools" in body["error"]["message"]
        assert served.chat(tools=[WEATHER], tool_choice="none")[0] == 200


def test_wrong_tool_calls_are_refused(served: Served) -> None:
    for arguments in ("{", "[1]", '"x"'):
        call = {"id": "1", "function": {"name": "weather", "arguments": arguments}}
        message = {"role": "assistant", "tool_calls": [call]}
        status, body = served.chat({"role": "user", "content": "x"}, message)
        assert status == 400 and "arguments" in body["error"]["message"]
    deep: Any = []
    for _ in range(100):
        deep = [deep]
    assert served.chat(tools=[{"type": "function", "function": deep}])[0] == 400


def test_a_result_without_its_call_is_refused(served: Served) -> None:
    status, body = served.chat({"role": "tool", "content": "rain", "tool_call_id": "7"})
    assert status == 400 and "no call has the id '7'" in body["error"]["message"]


def test_a_template_that_rejects_the_messages_is_the_clients_error(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", "{{ raise_exception('no system prompt') }}")
    with serving(folder) as served:
        status, body = served.chat()
    assert status == 400 and "no system prompt" in body["error"]["message"]


def test_reasoning_is_separate_from_the_answer(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", THINKING_TEMPLATE)
    with serving(folder, *["<think>why</think>because"] * 2) as served:
        message = served.chat()[1]["choices"][0]["message"]
        events = served.chat(stream=True)[1]
    assert message["reasoning_content"] == "why" and message["content"] == "because"
    deltas = [event["choices"][0]["delta"] for event in events]
    for name, expected in (("reasoning_content", "why"), ("content", "because")):
        assert "".join(delta.get(name) or "" for delta in deltas) == expected


# Writes its variables; `thinking` is not in it, so that only some of them exist.
SWITCHING_TEMPLATE = (
    "{% for m in messages %}{{ m.role + ':' + m.content + ';' }}{% endfor %}"
    "{{ [enable_thinking, extra | default('')] }}"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>"
    "{% else %}<think>{% endif %}"
)
EFFORT_TEMPLATE = "{{ messages[0].content }}[{{ reasoning_effort | default('medium') }}]"


def test_variables_of_the_template(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", SWITCHING_TEMPLATE)
    with serving(folder, *["plans</think>Hi"] * 13, think="on") as served:
        for options, expected in (
            ({}, "[True, '']<think>"),
            ({"chat_template_kwargs": {"enable_thinking": False}}, "[False, '']<think></think>"),
            ({"chat_template_kwargs": {"extra": "<|im_end|>"}}, "[True, '<|im_end|>']<think>"),
            ({"reasoning_effort": "high"}, "[True, '']<think>"),
            ({"reasoning_effort": "none"}, "[False, '']<think></think>"),
            ({"reasoning": {"effort": "none"}}, "[False, '']<think></think>"),
            ({"reasoning": {"enabled": False}}, "[False, '']<think></think>"),
            ({"reasoning": {"max_tokens": 0}}, "[True, '']<think>\n</think>\n\n"),
            ({"thinking_budget": 0}, "[True, '']<think>\n</think>\n\n"),
            (
                {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}},
                "[False, '']<think></think>",
            ),
            ({"chat_template_kwargs": None, "reasoning_effort": None}, "[True, '']<think>"),
        ):
            assert served.chat(**options)[0] == 200
            assert served.engine.prompt_text() == "user:hello;" + expected
            assert 257 not in served.engine.prompts[-1]


def test_reasoning_efforts_of_the_template(tmp_path: Path) -> None:
    with serving(make_folder(tmp_path / "model", EFFORT_TEMPLATE), *["Hi"] * 3) as served:
        for effort in ("low", "none"):
            assert served.chat(reasoning_effort=effort)[0] == 200
            assert served.engine.prompt_text() == f"hello[{effort}]"
        assert served.chat(chat_template_kwargs={"reasoning_effort": "max"})[0] == 200
        assert served.engine.prompt_text() == "hello[max]"


def test_a_reasoning_effort_without_an_effect_is_told_once(
    tmp_path: Path, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Agents send it with every request, whatever the model."""
    with serving(make_folder(tmp_path / "thinking", THINKING_TEMPLATE), *["Hi"] * 3) as served:
        for effort in ("low", "none", "xhigh"):
            assert served.chat_of("thinking", reasoning_effort=effort)[0] == 200
    with serving(folder, "Hi") as served:  # a model that does not reason
        assert served.chat(reasoning_effort="low")[0] == 200
    assert capfd.readouterr().err.count("reasoning_effort has no effect") == 1


def test_fields_that_would_change_the_answer_are_refused_by_name(served: Served) -> None:
    for name, value in (
        ("chat_template_kwargs", {"messages": []}),
        ("chat_template_kwargs", {"tools": []}),
        ("chat_template_kwargs", [1]),
        ("reasoning_effort", 3),
        ("functions", [{"name": "f"}]),
        ("function_call", "auto"),
        ("documents", [{"text": "x"}]),
        ("enable_thinking", False),
        ("thinking", {"type": "disabled"}),
        ("reasoning", {"max_tokens": -2}),
        ("reasoning", "low"),
        ("add_generation_prompt", False),
        ("continue_final_message", True),
    ):
        status, body = served.chat(**{name: value})
        assert status == 400
        assert body["error"]["param"] == name and name in body["error"]["message"]
    defaults = {"add_generation_prompt": True, "continue_final_message": False, "thinking": None}
    assert served.chat(**defaults)[0] == 200


def test_system_messages_wherever_agents_send_them(tmp_path: Path) -> None:
    rejects = (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
        "{{ raise_exception('system first') }}{% endif %}{{ m.role + ':' + m.content + ';' }}"
        "{% endfor %}"
    )
    has_none = rejects.replace(" and not loop.first", "")
    system, other = {"role": "system", "content": "x"}, {"role": "system", "content": "y"}
    developer = {"role": "developer", "content": "y"}
    user, answer = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    for source, messages, expected in (
        (rejects, [system, user, answer, other, user], "system:x;user:a;assistant:b;user:y\na;"),
        (rejects, [system, other, user], "system:x\ny;user:a;"),
        (rejects, [system, developer, user], "system:x\ny;user:a;"),
        (has_none, [system, user], "user:x\na;"),
        (has_none, [developer, user, answer, system, user], "user:y\na;assistant:b;user:x\na;"),
        (TOOLS_TEMPLATE, [system, developer, user], None),
    ):
        with serving(make_folder(tmp_path / "model", source), "Hi") as served:
            assert served.chat(*messages)[0] == 200
            if expected is not None:
                assert served.engine.prompt_text() == expected


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_of_earlier_answers_reaches_the_template(field: str, tmp_path: Path) -> None:
    """Under each name that templates read."""
    source = (
        "{% for m in messages %}{{ [m.reasoning_content, m.reasoning, m.thinking] }}{% endfor %}"
    )
    answer = {"role": "assistant", "content": "b", field: "why"}
    with serving(make_folder(tmp_path / "model", source), "Hi") as served:
        question = {"role": "user", "content": "a"}
        assert served.chat(question, answer, question)[0] == 200
        assert "['why', 'why', 'why']" in served.engine.prompt_text()


def test_an_error_of_the_engine(folder: Path) -> None:
    """A status if nothing was sent, otherwise an event of the stream."""
    failing = {"text": "begin", "error": "the GPU is gone"}
    with serving(folder, failing, failing, "fine") as served:
        status, body = served.chat()
        assert status == 503 and body["error"] == {
            "message": "the GPU is gone",
            "type": "server_error",
            "param": None,
            "code": "engine_error",
        }
        status, events = served.chat(stream=True)
        assert status == 200 and events[-1]["error"]["message"] == "the GPU is gone"
        assert served.chat()[0] == 200


def test_an_unexpected_error_does_not_end_the_server(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(folder, "fine") as served:
        served.engine.answers.insert(0, {"text": 5})
        status, body = served.chat()
        assert status == 500 and body["error"]["message"] == "internal error"
        assert served.chat()[0] == 200
    assert capfd.readouterr().err.count("error: /v1/chat/completions") == 1


def test_an_error_of_one_answer_is_that_of_the_request(folder: Path) -> None:
    failing = {"text": "begin", "error": "the GPU is gone"}
    with serving(folder, "fine", failing, "fine", "fine", failing, "fine") as served:
        status, body = served.chat(n=3)
        assert status == 503 and body["error"]["message"] == "the GPU is gone"
        status, events = served.chat(n=2, stream=True)
        assert status == 200 and events[-1]["error"]["message"] == "the GPU is gone"
        assert served.chat()[0] == 200


def test_each_answer_counts_as_one_of_the_most_at_a_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers_module, "_MAX_ANSWERS", 2)
    with serving(folder, "one", "two", "three") as served:
        status, body = served.chat(n=3)
        assert status == 503 and body["error"]["code"] == "busy"
        assert [one["message"]["content"] for one in served.chat(n=2)[1]["choices"]] == [
            "one",
            "two",
        ]
        assert served.chat()[0] == 200


def test_too_many_requests_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers_module, "_MAX_ANSWERS", 1)
    with serving(folder, {"text": "x" * 1000, "delay_s": 0.05}, "fine") as served:
        connection = HTTPConnection("127.0.0.1", served.port, timeout=END_S)
        body = {"model": "model", "messages": [{"role": "user", "content": "x"}], "stream": True}
        headers = {"Authorization": f"Bearer {TOKEN}"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        connection.getresponse().read(10)
        status, answer = served.chat()
        assert status == 503 and answer["error"]["code"] == "busy"
        connection.close()
        wait_until(lambda: served.chat()[0] == 200, END_S)


def test_the_token_comes_from_a_file_a_variable_or_is_new(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    environ = {"SWIFTCHAT_API_TOKEN": "from-the-variable"}
    assert find_token(str(file), environ) == ApiToken(TOKEN)
    assert find_token(None, environ) == ApiToken("from-the-variable")
    first, second = find_token(None, {}), find_token(None, {})
    assert first.is_new and len(first.text) >= 43 and first != second
    file.write_text("x\n")
    assert find_token(str(file), {}) == ApiToken("x")
    for text in ("", "\n", "two words of token", "é" * 20):
        file.write_text(text)
        with pytest.raises(UsageError, match="is not one word of ASCII"):
            find_token(str(file), {})
    with pytest.raises(UsageError, match="cannot read the token"):
        find_token(str(tmp_path / "missing"), {})


def test_other_machines_need_a_flag(capfd: pytest.CaptureFixture[str], folder: Path) -> None:
    token = ApiToken(TOKEN)
    with pytest.raises(UsageError, match="can be reached from other machines") as caught:
        EndpointServer("0.0.0.0:0", token, allow_remote=False)
    assert "--allow-remote" in caught.value.hint
    for address in ("8080", "./socket", "127.0.0.1:99999"):
        with pytest.raises(UsageError):
            EndpointServer(address, token, allow_remote=False)
    with EndpointServer("0.0.0.0:0", token, allow_remote=True) as server:
        server._print_access()
        with pytest.raises(DeviceError, match="in use"):
            EndpointServer(urlsplit(server.url).netloc, token, allow_remote=True)
    shown = capfd.readouterr().err
    assert "warning: other machines may reach it" in shown and TOKEN not in shown
    with EndpointServer("127.0.0.1:0", ApiToken(TOKEN, is_new=True), False) as server:
        server._print_access()
    assert capfd.readouterr().err == f"OpenAI-compatible API: {server.url}\ntoken: {TOKEN}\n"


@pytest.mark.parametrize(
    "args",
    [("--token-file", "x"), ("--allow-remote",), ("--no-auth",), ("--cors", "http://a.b")],
)
def test_options_of_the_api_need_it(args: tuple[str, ...]) -> None:
    result = swiftchat("serve", *args)
    assert result.returncode == 2 and b"add --openai" in result.stderr


def test_a_missing_package_is_one_error_line(tmp_path: Path) -> None:
    (tmp_path / "uvicorn.py").write_text("raise ModuleNotFoundError(name='uvicorn')")
    result = swiftchat("serve", "--openai", "127.0.0.1:0", PYTHONPATH=str(tmp_path))
    assert result.returncode == 2 and result.stderr.decode().splitlines() == [
        "error: --openai needs the package uvicorn, which is not installed",
        "hint: pip install 'swiftchat[serve]'",
    ]


def test_an_answer_that_repeats_itself_is_cut_off(folder: Path) -> None:
    with serving(folder, "x" * 250, "x" * 250) as served:
        _, cut = served.chat()
        assert cut["choices"][0]["finish_reason"] == "length"
        assert cut["choices"][0]["message"]["content"] == "x" * 200
        _, whole = served.chat(loop_stop="off")
        assert whole["choices"][0]["message"]["content"] == "x" * 250
