"""Streams of events: errors, silence, stop texts, arguments, and parts of characters."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from swiftchat.chat.endpoint import choice, generation
from swiftchat.chat.endpoint.answers import posted
from swiftchat.chat.endpoint.chat_completions import ChatChoice
from swiftchat.chat.model.answer import Answer
from swiftchat.chat.model.answer_group import AnswerGroup
from swiftchat.chat.model.prompt_encoder import PromptEncoder
from swiftchat.chat.model.reasoning import ReasoningSplitter
from swiftchat.chat.tools.call_splitter import ToolCallSplitter
from swiftchat.tokenizer.core.stream import TokenStream
from tests.chat.endpoint.test_http import (
    CALL_TEXT,
    THINKING_TEMPLATE,
    TOOLS_TEMPLATE,
    WEATHER,
    Served,
    serving,
)
from tests.support.fake_engine import FakeEngine, FakeGeneration, make_folder


def raw_stream(served: Served, **options: Any) -> str:
    """Return the text of a stream of a chat completion."""
    messages = [{"role": "user", "content": "hello"}]
    body = {"model": "model", "messages": messages, "stream": True, **options}
    return served.text("/v1/chat/completions", body)


def failing(*args: Any, **options: Any) -> NoReturn:
    raise RuntimeError("out of order")


LAYERS: list[tuple[Any, str]] = [
    (PromptEncoder, "encoder"),
    (Answer, "__init__"),
    (Answer, "__iter__"),
    (AnswerGroup, "__iter__"),
    (FakeEngine, "generate"),
    (FakeGeneration, "__iter__"),
    (TokenStream, "push"),
    (TokenStream, "flush"),
    (ReasoningSplitter, "push"),
    (ToolCallSplitter, "push"),
    (ToolCallSplitter, "flush"),
    (ChatChoice, "begin"),
    (ChatChoice, "push"),
    (ChatChoice, "end"),
    (choice, "usage"),
    (generation, "_stream"),
]


@pytest.mark.parametrize(("owner", "name"), LAYERS, ids=lambda one: getattr(one, "__name__", one))
def test_an_error_anywhere_is_told(
    owner: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a status before the first byte, else as an event; then the next request is answered."""
    folder = make_folder(tmp_path / "model", TOOLS_TEMPLATE)
    options: Any = {"tools": [WEATHER], "stream_options": {"include_usage": True}}
    with serving(folder, *["an answer"] * 3) as served:
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, failing)
            text = raw_stream(served, **options)
        if text.startswith("{"):
            assert json.loads(text)["error"]["message"] == "internal error"
        else:
            *_, event, done, end = text.split("\n\n")
            error = json.loads(event.removeprefix("data: "))["error"]
            assert error["message"] == "internal error"
            assert (done, end) == ("data: [DONE]", "")
        assert served.chat()[0] == 200


def test_a_thread_that_wants_to_exit_is_an_error() -> None:
    async def consume() -> list[object]:
        return [item async for item in posted([lambda post: sys.exit(3)])]

    with pytest.raises(RuntimeError, match="SystemExit"):
        asyncio.run(consume())


def test_silence_is_filled_with_comments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """During a long prefill, and while the text of a call is held back."""
    monkeypatch.setattr(generation, "HEARTBEAT_S", 0.05)
    folder = make_folder(tmp_path / "model", TOOLS_TEMPLATE)
    slow = {"text": "an answer", "prefill_s": 0.5, "end_delay_s": 0.3}
    with serving(folder, slow) as served:
        events = raw_stream(served).split("\n\n")
    assert events[0].startswith("data: ")
    comments = [i for i, event in enumerate(events) if event.startswith(":")]
    assert 1 in comments and comments[-1] > 9
    assert [event for event in events if not event.startswith(("data: ", ":"))] == [""]
    assert events[-2] == "data: [DONE]"


def test_stop_texts_count_in_the_answer_only(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", THINKING_TEMPLATE)
    answer = "<think>\nThe Question: what is 2+2\n</think>\n\nFour. Question: no"
    with serving(folder, answer, answer) as served:
        message = served.chat(stop=["Question:"])[1]["choices"][0]["message"]
        events = served.chat(stop="Question:", stream=True)[1]
    assert message["reasoning_content"] == "The Question: what is 2+2"
    assert message["content"] == "Four. "
    deltas = [event["choices"][0]["delta"] for event in events]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Four. "


def test_a_call_that_is_cut_has_its_pieces_only(tmp_path: Path) -> None:
    """The client has seen its beginning; as a whole answer it is text."""
    folder = make_folder(tmp_path / "model", TOOLS_TEMPLATE)
    answer = f"I look. {CALL_TEXT}"
    limit = answer.index("slo")
    with serving(folder, answer, answer, f"{CALL_TEXT} More.") as served:
        events = served.chat(tools=[WEATHER], stream=True, max_tokens=limit)[1]
        whole = served.chat(tools=[WEATHER], max_tokens=limit)[1]["choices"][0]
        more = served.chat(tools=[WEATHER], stream=True, max_tokens=len(CALL_TEXT) + 3)[1]
    assert whole["message"]["content"] == answer[:limit] and whole["finish_reason"] == "length"
    assert collected(events) == ("I look. ", ["weather"], '{"city": "O', "length")
    assert collected(more) == (" Mo", ["weather"], '{"city": "Oslo"}', "length")


def collected(events: list[Any]) -> tuple[str, list[str], str, str]:
    """Return the text, the names and arguments of calls, and the reason of the end."""
    deltas = [event["choices"][0]["delta"] for event in events]
    calls = [call["function"] for delta in deltas for call in delta.get("tool_calls", ())]
    text = "".join(delta.get("content") or "" for delta in deltas)
    names = [call["name"] for call in calls if "name" in call]
    arguments = "".join(call["arguments"] for call in calls)
    return text, names, arguments, events[-1]["choices"][0]["finish_reason"]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('{"text": "\\ud83d"}', {"text": "\ufffd"}),
        ('{"\\udc00": "a\\ud83d\\ude00"}', {"\ufffd": "a😀"}),
        ('{"y": NaN}', {"y": None}),
        ('{"y": [1e999, -Infinity, 1]}', {"y": [None, None, 1]}),
    ],
)
def test_arguments_are_json_for_every_client(
    written: str, expected: dict[str, Any], tmp_path: Path
) -> None:
    folder = make_folder(tmp_path / "model", TOOLS_TEMPLATE)
    answer = CALL_TEXT.replace('{"city": "Oslo"}', written)
    with serving(folder, answer, answer) as served:
        (call,) = served.chat(tools=[WEATHER])[1]["choices"][0]["message"]["tool_calls"]
        text = raw_stream(served, tools=[WEATHER])
    assert json.loads(call["function"]["arguments"], parse_constant=pytest.fail) == expected
    assert text.endswith('"finish_reason": "tool_calls"}]}\n\ndata: [DONE]\n\n')


TEXT = "a 東京 \u00e9\U0001f600 b"


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_parts_of_characters(stream: bool, tmp_path: Path) -> None:
    """A token is a byte: each has its offset in the text, and alternatives of its own."""
    with serving(make_folder(tmp_path / "model"), TEXT) as served:
        body = {"model": "model", "prompt": "x", "logprobs": 5, "stream": stream}
        answered = served.request("/v1/completions", body)[1]
    choices = [one["choices"][0] for one in (answered if stream else [answered])]
    found: dict[str, list[Any]] = {"tokens": [], "text_offset": [], "top_logprobs": []}
    for one in choices:
        for name, values in found.items():
            values += one["logprobs"][name]
    assert "".join(one["text"] for one in choices) == TEXT
    offsets = [i for i, character in enumerate(TEXT) for _ in character.encode()]
    assert found["text_offset"] == offsets
    tokens = [
        text if text.isascii() else f"bytes:\\x{byte:02x}"
        for text in TEXT
        for byte in text.encode()
    ]
    assert found["tokens"] == tokens
    assert all(len(top) == 5 for top in found["top_logprobs"])
    pairs = zip(found["tokens"], found["top_logprobs"], strict=True)
    assert all(token in top for token, top in pairs)


def test_logprobs_of_control_tokens_have_their_names(tmp_path: Path) -> None:
    with serving(make_folder(tmp_path / "model"), {"ids": [255]}) as served:
        body = {"model": "model", "prompt": "x", "logprobs": 3}
        (one,) = served.request("/v1/completions", body)[1]["choices"]
    assert list(one["logprobs"]["top_logprobs"][0]) == [
        "bytes:\\xff",
        "<|im_start|>",
        "<|im_end|>",
    ]
