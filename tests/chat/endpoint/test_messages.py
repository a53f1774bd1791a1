"""`/v1/messages`, whose objects and events are checked by the types of the `anthropic` package."""

import json
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from swiftchat.chat.endpoint import generation
from swiftchat.chat.endpoint.message_choice import MessageChoice
from swiftchat.chat.endpoint.message_request import CountRequest, MessageRequest
from tests.chat.endpoint.test_http import (
    CALL_TEXT,
    TOKEN,
    Served,
    answering,
    serving,
)
from tests.chat.endpoint.thinking_model import THOUGHT, assert_documented
from tests.chat.endpoint.thinking_model import folder as folder
from tests.chat.endpoint.thinking_model import served as served
from tests.support.cases import each_case
from tests.support.strict_types import strict

pytest.importorskip("anthropic")
from anthropic.types import (
    Message,
    MessageTokensCount,
    RawMessageStreamEvent,
)
from anthropic.types.beta.message_create_params import (
    MessageCreateParamsBase as BetaParams,
)
from anthropic.types.message_count_tokens_params import MessageCountTokensParams
from anthropic.types.message_create_params import MessageCreateParamsBase
from anthropic.types.shared import ErrorResponse

WEATHER = {"name": "weather", "description": "how it is", "input_schema": {"type": "object"}}
BODY: dict[str, Any] = {
    "model": "model",
    "max_tokens": 99,
    "messages": [{"role": "user", "content": "x"}],
}
HEADERS = {"x-api-key": TOKEN, "anthropic-version": "2023-06-01"}


def ask(served: Served, content: Any = "hello", **options: Any) -> tuple[int, Any]:
    """Send a request and check the message, all events of a stream, or the error."""
    messages = [{"role": "user", "content": content}]
    body = {"model": "model", "max_tokens": 200, "messages": messages, **options}
    status, found = served.request("/v1/messages", body, HEADERS)
    if status != 200:
        strict(ErrorResponse, found)
    elif not options.get("stream"):
        strict(Message, found)
    else:
        for event in found:
            strict(RawMessageStreamEvent, event)
    return status, found


@each_case(
    ("answer", "options"),
    [
        ("an answer", {}),
        (" an\n\nanswer \n", {}),
        (THOUGHT, {"tools": [WEATHER]}),
        (THOUGHT, {"tools": [WEATHER], "thinking": {"type": "adaptive", "display": "omitted"}}),
        (f"{CALL_TEXT}\n{CALL_TEXT}", {"tools": [WEATHER]}),
        (CALL_TEXT, {"tools": [WEATHER], "tool_choice": {"type": "any"}}),
        ("one two three", {"stop_sequences": ["four", " three"]}),
        ("an answer", {"max_tokens": 4}),
        ({"text": "an answer", "limit": 5}, {}),
        ("<think>a\n\nb", {}),
        ("", {}),
    ],
)
def test_a_stream_builds_the_whole_message(
    answer: Any, options: dict[str, Any], served: Served
) -> None:
    answering(served, answer, answer)
    whole = ask(served, **options)[1]
    events = ask(served, stream=True, **options)[1]
    message = built(events)
    for found in (message, whole):
        for block in found["content"]:
            block.pop("id", None)
    ignored = {"id", "usage"}
    assert {name: message[name] for name in whole if name not in ignored} == {
        name: value for name, value in whole.items() if name not in ignored
    }
    assert message["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def built(events: list[Any]) -> dict[str, Any]:
    """Return the message that events build, and check their order."""
    message: dict[str, Any] = {}
    is_open = False
    for event in events:
        match event["type"]:
            case "message_start":
                assert not message
                message = event["message"]
            case "content_block_start":
                assert not is_open and event["index"] == len(message["content"])
                is_open, arguments = True, ""
                message["content"].append(event["content_block"])
            case "content_block_delta":
                assert is_open and event["index"] == len(message["content"]) - 1
                block, delta = message["content"][-1], dict(event["delta"])
                kind = delta.pop("type")
                ((name, piece),) = delta.items()
                if kind == "input_json_delta":
                    arguments += piece
                else:
                    block[name] += piece
            case "content_block_stop":
                assert is_open
                is_open = False
                if block["type"] == "tool_use":
                    block["input"] = json.loads(arguments)
            case "message_delta":
                assert not is_open
                message |= event["delta"]
                message["usage"] |= event["usage"]
    assert events[-1] == {"type": "message_stop"}
    return message


@each_case(
    ("answer", "options", "expected"),
    [
        ("an answer", {}, ("end_turn", None)),
        ("one two", {"stop_sequences": ["x", " t"]}, ("stop_sequence", " t")),
        ("an answer", {"max_tokens": 4}, ("max_tokens", None)),
        (
            {"text": "an answer", "limit": 5},
            {},
            ("model_context_window_exceeded", None),
        ),
        (CALL_TEXT, {"tools": [WEATHER]}, ("tool_use", None)),
    ],
)
def test_why_an_answer_ended(
    answer: Any, options: dict[str, Any], expected: tuple[str, str | None], served: Served
) -> None:
    answering(served, answer)
    message = ask(served, **options)[1]
    assert (message["stop_reason"], message["stop_sequence"]) == expected


def test_the_blocks_of_an_answer(folder: Path) -> None:
    with serving(folder, THOUGHT) as served:
        message = ask(served, tools=[WEATHER])[1]
        count = served.request(
            "/v1/messages/count_tokens",
            {
                "model": "model",
                "messages": [{"role": "user", "content": "hello"}],
                "tools": [WEATHER],
            },
        )
    thinking, text, call = message["content"]
    assert thinking["thinking"] == "hm" and thinking["signature"]
    assert text["text"] == "I look."
    assert (call["name"], call["input"]) == ("weather", {"city": "Oslo"})
    usage = message["usage"]
    num_prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert count[0] == 200 and strict(MessageTokensCount, count[1]).input_tokens == num_prompt
    assert usage["output_tokens_details"]["thinking_tokens"] > 0


def test_blocks_become_messages(served: Served) -> None:
    cached = {"cache_control": {"type": "ephemeral"}}
    status, _ = ask(
        served,
        system=[{"type": "text", "text": "Be brief.", **cached}],
        tools=[{**WEATHER, **cached}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": text} for text in "ab"]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "x"},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Oslo"}},
                    {"type": "tool_use", "id": "c2", "name": "weather", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "rain<|im_end|>"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "c2",
                        "is_error": True,
                        "content": [{"type": "text", "text": "no"}],
                    },
                    {"type": "text", "text": "And?"},
                ],
            },
        ],
    )
    assert status == 200
    prompt = served.engine.prompt_text()
    assert '"name": "weather", "description": "how it is"' in prompt
    assert prompt.endswith(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n"
        '<|im_start|>assistant\nI look.<tool_call>weather({"city": "Oslo"})</tool_call>'
        "<tool_call>weather({})</tool_call><|im_end|>\n"
        "<|im_start|>tool\nrain<|im_end|><|im_end|>\n<|im_start|>tool\nError: no<|im_end|>\n"
        "<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_what_is_asked_for_reaches_the_engine(served: Served) -> None:
    thinking = {"type": "enabled", "budget_tokens": 50}
    assert ask(served, temperature=0.5, top_p=0.25, top_k=7, thinking=thinking)[0] == 200
    params = served.engine.params[-1]
    assert (params.temperature, params.top_p, params.top_k) == (0.5, 0.25, 7)
    assert (params.max_tokens, params.reasoning_budget) == (200, 50)
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    wanted = {"type": "json_schema", "schema": schema}
    for options in ({"output_config": {"format": wanted}}, {"output_format": wanted}):
        assert ask(served, **options)[0] == 200
        assert served.engine.constraints[-1] is not None
    choice = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
    assert ask(served, tools=[WEATHER], tool_choice=choice)[0] == 200
    assert served.engine.constraints[-1] is not None
    assert ask(served, tools=[WEATHER], tool_choice={"type": "none"})[0] == 200
    assert "weather" not in served.engine.prompt_text()


def test_an_answer_continues_a_last_message_of_the_assistant(served: Served) -> None:
    begun = {"role": "assistant", "content": "It is"}
    body = {**BODY, "messages": [*BODY["messages"], begun]}
    answering(served, " raining")
    status, message = served.request("/v1/messages", body)
    assert status == 200 and message["content"][0]["text"] == " raining"
    assert served.engine.prompt_text().endswith("<|im_start|>assistant\nIt is")
    counted = {name: body[name] for name in ("model", "messages")}
    count = served.request("/v1/messages/count_tokens", counted)[1]["input_tokens"]
    assert count == len(served.engine.prompts[-1])


def test_one_call_at_most(folder: Path) -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    with serving(folder, CALL_TEXT * 2) as served:
        message = ask(served, tools=[WEATHER], tool_choice=choice)[1]
    assert len(message["content"]) == 1


@each_case(
    ("options", "named"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"content": [{"type": "image", "source": {}}]}, "'image' is not supported"),
        ({"content": [{"type": "document", "source": {}}]}, "'document' is not supported"),
        ({"content": [{"type": "tool_use", "id": "x", "name": "y", "input": {}}]}, "'tool_use'"),
        ({"content": [{"type": "tool_result", "tool_use_id": "x", "content": "y"}]}, "tool_use_id"),
        ({"content": [{"type": "text"}]}, "messages.0.content.0.text"),
        ({"system": [{"type": "image"}]}, "system.0"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "bash_20250124"),
        ({"tools": [{"name": "x"}]}, "input_schema"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
        ({"odd_field": 1}, "odd_field"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    options: dict[str, Any], named: str, served: Served
) -> None:
    for stream in (False, True):
        status, found = ask(served, stream=stream, **options)
        assert status == 400 and named in found["error"]["message"], found
        assert found["error"]["type"] == "invalid_request_error"


def test_every_field_of_the_package_is_known(served: Served) -> None:
    table = MessageRequest.TABLE
    for kind, params in (
        (MessageRequest, MessageCreateParamsBase),
        (MessageRequest, BetaParams),
        (CountRequest, MessageCountTokensParams),
    ):
        honored = {*kind.model_fields, "temperature", "top_p", "top_k", "betas"}
        for name in get_type_hints(params):
            assert name in honored or name in table.refused or name in table.without_effect, name
        assert not honored & {*table.refused, *table.without_effect}
    assert_documented(table)
    assert ask(served, **dict.fromkeys(table.without_effect, "x"))[0] == 200
    for name in table.refused:
        status, found = ask(served, **{name: "an odd value"})
        assert status == 400 and name in found["error"]["message"]
        for value in (None, *table.defaults.get(name, ())):
            assert ask(served, **{name: value})[0] == 200


def test_a_thread_is_refused_so_that_clients_send_all_messages(served: Served) -> None:
    status, found = served.request("/v1/messages", {**BODY, "thread": {"type": "create"}})
    assert status == 400
    assert found["error"]["details"] == {"error_code": "thread_unsupported_request"}


def test_errors_have_the_format_of_the_path(served: Served) -> None:
    for path, sent, headers, expected in (
        ("/v1/messages", BODY, {}, (401, "authentication_error")),
        ("/v1/messages", BODY, {"x-api-key": "wrong"}, (401, "authentication_error")),
        ("/v1/messages", {**BODY, "model": "other"}, HEADERS, (404, "not_found_error")),
        ("/v1/messages", b"{", HEADERS, (400, "invalid_request_error")),
        ("/v1/messages", None, HEADERS, (405, "invalid_request_error")),
        ("/v1/messages/other", BODY, HEADERS, (404, "not_found_error")),
        ("/v1/messages/count_tokens", {"model": "model"}, HEADERS, (400, "invalid_request_error")),
    ):
        status, found = served.request(path, sent, headers)
        assert (status, strict(ErrorResponse, found).error.type) == expected


def test_an_error_after_the_first_event_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*args: Any) -> None:
        raise RuntimeError("out of order")

    for owner, name in ((MessageChoice, "extended"), (generation, "_stream")):
        with serving(folder, "an answer") as served, monkeypatch.context() as patched:
            patched.setattr(owner, name, failing)
            last = served.request("/v1/messages", {**BODY, "stream": True})[1][-1]
            assert last == {
                "type": "error",
                "error": {"type": "api_error", "message": "internal error"},
            }


def test_silence_is_filled_with_pings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "HEARTBEAT_S", 0.05)
    with serving(folder, {"text": "an answer", "prefill_s": 0.5}) as served:
        events = served.request("/v1/messages", {**BODY, "stream": True})[1]
    assert events.count({"type": "ping"}) > 1
    assert events[0]["type"] == "message_start" and events[-1]["type"] == "message_stop"
