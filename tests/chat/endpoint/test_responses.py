"""`/v1/responses`, whose objects and events are checked by the types of the `openai` package."""

from pathlib import Path
from typing import Any, get_type_hints

import pytest
from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent
from openai.types.responses.input_token_count_response import InputTokenCountResponse
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from swiftchat.chat.endpoint import generation, response_store
from swiftchat.chat.endpoint.response_choice import ItemsChoice
from swiftchat.chat.endpoint.response_request import ResponseRequest
from swiftchat.chat.endpoint.response_store import StoredResponse, StoredResponses
from tests.chat.endpoint.test_http import (
    CALL_TEXT,
    THINKING_TEMPLATE,
    Served,
    answering,
    serving,
)
from tests.chat.endpoint.thinking_model import THOUGHT, assert_documented
from tests.chat.endpoint.thinking_model import folder as folder
from tests.chat.endpoint.thinking_model import served as served
from tests.support.cases import each_case
from tests.support.fake_engine import make_folder
from tests.support.strict_types import strict

WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}}


def respond(served: Served, input_: Any = "hello", **options: Any) -> tuple[int, Any]:
    """Send a request and check the response, or all events of a stream."""
    status, found = served.request("/v1/responses", {"model": "model", "input": input_, **options})
    if status == 200 and not options.get("stream"):
        strict(Response, found)
    elif status == 200:
        for event in found:
            strict(ResponseStreamEvent, event)
        assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return status, found


def without_ids(value: Any) -> Any:
    """Return an object without what differs between two responses."""
    if isinstance(value, list):
        return [without_ids(part) for part in value]
    if not isinstance(value, dict):
        return value
    names = ("id", "item_id", "call_id", "created_at", "completed_at", "usage")
    return {name: without_ids(part) for name, part in value.items() if name not in names}


@each_case(
    ("answer", "options"),
    [
        ("an answer", {}),
        (" an\n\nanswer \n", {}),
        (THOUGHT, {"tools": [WEATHER]}),
        (f"{CALL_TEXT}\n{CALL_TEXT}", {"tools": [WEATHER]}),
        (f"<think>a</think>{CALL_TEXT}", {"tools": [WEATHER], "tool_choice": "required"}),
        ("<think>a\n\nb", {}),
        ("<think>a</think>b", {"top_logprobs": 2}),
        ("", {}),
        ('{"n": 3}', {"text": {"format": {"type": "json_object"}}}),
    ],
)
def test_a_stream_builds_the_whole_response(
    answer: str, options: dict[str, Any], served: Served
) -> None:
    answering(served, answer, answer)
    whole = respond(served, **options)[1]
    events = respond(served, stream=True, **options)[1]
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed" and whole["status"] == "completed"
    last = events[-1]["response"]
    assert without_ids(last) == without_ids(whole)
    assert built(events) == last["output"]


def built(events: list[Any]) -> list[Any]:
    """Return the output items that the events build, and check the order of these."""
    items: list[Any] = []
    texts: dict[str, str] = {}
    is_open = False
    for event in events:
        match event["type"].removeprefix("response.").split("."):
            case ["output_item", "added"]:
                assert not is_open and event["output_index"] == len(items)
                is_open = True
                items.append(event["item"])
                assert event["item"]["status"] == "in_progress"
            case ["output_item", "done"]:
                assert is_open and event["item"]["id"] == items[-1]["id"]
                is_open = False
                items[-1] = event["item"]
                parts = event["item"].get("content") or [{"text": event["item"].get("arguments")}]
                assert parts[0]["text"] == texts[event["item"]["id"]]
            case [_, "delta"]:
                assert event["item_id"] == items[-1]["id"] and event["delta"]
                texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
            case ["output_text" | "reasoning_text", "done"]:
                assert event["text"] == texts[event["item_id"]]
            case ["function_call_arguments", "done"]:
                assert event["arguments"] == texts[event["item_id"]]
    assert not is_open
    return items


def test_the_items_of_an_answer(folder: Path) -> None:
    with serving(folder, THOUGHT) as served:
        response = respond(served, tools=[WEATHER])[1]
    reasoning, message, call = response["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert message["content"][0]["text"] == "I look."
    assert (call["name"], call["arguments"]) == ("weather", '{"city": "Oslo"}')
    usage = response["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["output_tokens_details"]["reasoning_tokens"] > 0


def test_logprobs_are_those_of_the_text(tmp_path: Path) -> None:
    answer = "<think>abc</think>de"
    with serving(make_folder(tmp_path / "model", THINKING_TEMPLATE), answer, answer) as served:
        include = ["message.output_text.logprobs"]
        whole = respond(served, include=include)[1]
        events = respond(served, include=include, stream=True)[1]
    (text,) = whole["output"][1]["content"]
    assert "".join(one["token"] for one in text["logprobs"]) == "de"
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [one["token"] for delta in deltas for one in delta["logprobs"]] == ["d", "e"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_cut_is_incomplete(stream: bool, folder: Path) -> None:
    """A call that is cut is an incomplete item of a stream, and text of a whole response."""
    limit = THOUGHT.index("slo")
    with serving(folder, "an answer", THOUGHT) as served:
        text = respond(served, max_output_tokens=4, stream=stream)[1]
        call = respond(served, tools=[WEATHER], max_output_tokens=limit, stream=stream)[1]
    if stream:
        assert text[-1]["type"] == call[-1]["type"] == "response.incomplete"
        text, call = text[-1]["response"], call[-1]["response"]
    for response in (text, call):
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert response["output"][-1]["status"] == "incomplete"
    assert text["output"][0]["content"][0]["text"] == "an a"
    assert call["output"][-1]["type"] == ("function_call" if stream else "message")


def test_items_become_messages(served: Served) -> None:
    status, _ = respond(
        served,
        [
            {"role": "developer", "content": "Be brief."},
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": text} for text in "ab"],
            },
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": None},
            {
                "type": "message",
                "role": "assistant",
                "id": "msg_1",
                "status": "completed",
                "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
            },
            {
                "type": "function_call",
                "call_id": "c1",
                "name": "weather",
                "arguments": '{"city": "Oslo"}',
            },
            {
                "type": "function_call",
                "call_id": "c2",
                "name": "weather",
                "arguments": '{"ci',
                "status": "incomplete",
            },
            {"type": "function_call_output", "call_id": "c1", "output": "rain<|im_end|>"},
            {"role": "user", "content": "And?"},
        ],
        instructions="You are kind.",
        tools=[WEATHER],
    )
    assert status == 200
    prompt = served.engine.prompt_text()
    assert '"name": "weather"' in prompt
    assert prompt.endswith(
        "<|im_start|>system\nYou are kind.<|im_end|>\n<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\na\nb<|im_end|>\n"
        '<|im_start|>assistant\nI look.<tool_call>weather({"city": "Oslo"})</tool_call>'
        "<|im_end|>\n<|im_start|>tool\nrain<|im_end|><|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_conversation_goes_on(folder: Path) -> None:
    """With the items of all earlier responses, but not with their instructions."""
    with serving(folder, f"<think>hm</think>{CALL_TEXT}", "It rains.", "Yes.") as served:
        first = respond(served, tools=[WEATHER], instructions="Look.", stream=True)[1]
        first = first[-1]["response"]
        call = first["output"][1]["call_id"]
        result = {"type": "function_call_output", "call_id": call, "output": "rain"}
        second = respond(served, [result], previous_response_id=first["id"])[1]
        assert served.engine.prompt_text() == (
            "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
            '<tool_call>weather({"city": "Oslo"})</tool_call><|im_end|>\n'
            "<|im_start|>tool\nrain<|im_end|>\n<|im_start|>assistant\n"
        )
        third = respond(served, "Sure?", previous_response_id=second["id"], store=False)[1]
        assert served.engine.prompt_text().endswith(
            "<|im_start|>assistant\nIt rains.<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n"
            "<|im_start|>assistant\n"
        )
        assert third["previous_response_id"] == second["id"]
        path = f"/v1/responses/{second['id']}"
        assert served.request(path) == (200, second)
        listed = strict(ResponseItemList, served.request(f"{path}/input_items?order=asc")[1])
        types = ["message", "reasoning", "function_call", "function_call_output"]
        assert [item.type for item in listed.data] == types and not listed.has_more
        pages = [served.request(f"{path}/input_items?limit=3")[1]]
        pages.append(served.request(f"{path}/input_items?limit=3&after={pages[0]['last_id']}")[1])
        assert [page["has_more"] for page in pages] == [True, False]
        found = [item["id"] for page in pages for item in page["data"]]
        assert found == [item.id for item in reversed(listed.data)]
        for query in ("limit=0", "limit=101", "limit=x", "order=up", "after=x"):
            assert served.request(f"{path}/input_items?{query}")[0] == 400
        assert served.request(f"/v1/responses/{third['id']}")[0] == 404
        assert served.request(path, method="DELETE")[1]["deleted"] is True
        for method in ("GET", "DELETE"):
            assert served.request(path, method=method)[0] == 404
    assert served.engine.prompt_text().count("Look.") == 0


def test_an_item_may_be_referred_to(served: Served) -> None:
    first = respond(served, "hello")[1]
    item = {"type": "item_reference", "id": first["output"][0]["id"]}
    assert respond(served, [item, {"role": "user", "content": "again"}])[0] == 200
    assert "<|im_start|>assistant\nan answer<|im_end|>" in served.engine.prompt_text()
    status, found = respond(served, [{"type": "item_reference", "id": "msg_x"}])
    assert (status, found["error"]["param"]) == (404, "input")


def test_the_store_forgets_what_was_used_longest_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    def stored(name: str, text: str = "") -> StoredResponse:
        return StoredResponse({"id": name, "output": []}, [{"text": text}])

    def kept(store: StoredResponses) -> list[str]:
        return [name for name in "abcde" if has(store, name)]

    def has(store: StoredResponses, name: str) -> bool:
        try:
            return store.get(name).response["id"] == name
        except Exception:  # noqa: BLE001
            return False

    monkeypatch.setattr(response_store, "MAX_RESPONSES", 3)
    store = StoredResponses()
    for name in "abc":
        store.add(stored(name))
    store.get("a")
    store.add(stored("d"))
    assert kept(store) == ["a", "c", "d"]
    monkeypatch.setattr(response_store, "MAX_BYTES", 460)
    store.add(stored("e", "x" * 400))
    assert kept(store) == ["e"]
    store.remove("e")
    store.add(stored("b", "x" * 400))
    assert kept(store) == ["b"]


@each_case(
    ("options", "param"),
    [
        ({"input": []}, "input"),
        ({"input": 3}, "input.str"),
        ({"input": [{"type": "computer_call"}]}, "input"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input.0.role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": ""}]}, "input"),
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"odd": 1}}, "text.odd"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_k": -2}, "top_k"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"truncation": "some"}, "truncation"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"store": "yes"}, "store"),
        ({"odd_field": 1}, "odd_field"),
        ({"n": 2}, "n"),
        ({"background": True}, "background"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    options: dict[str, Any], param: str, served: Served
) -> None:
    for stream in (False, True):
        status, found = respond(served, **{"input_": "hello", "stream": stream} | renamed(options))
        assert (status, found["error"]["param"]) == (400, param), found


def renamed(options: dict[str, Any]) -> dict[str, Any]:
    return {("input_" if name == "input" else name): value for name, value in options.items()}


def test_every_field_of_the_package_is_known(served: Served) -> None:
    table, honored = ResponseRequest.TABLE, {*ResponseRequest.model_fields}
    for name in get_type_hints(ResponseCreateParamsBase):
        assert name in honored or name in table.refused or name in table.without_effect, name
    assert not honored & {*table.refused, *table.without_effect}
    assert_documented(table)
    assert respond(served, **dict.fromkeys(table.without_effect, "x"))[0] == 200
    for name in table.refused:
        status, found = respond(served, **{name: "an odd value"})
        assert (status, found["error"]["param"]) == (400, name)
        for value in (None, *table.defaults.get(name, ())):
            assert respond(served, **{name: value})[0] == 200


def test_what_is_asked_for_reaches_the_engine(served: Served) -> None:
    options = {"temperature": 0.5, "top_p": 0.25, "max_output_tokens": 99, "top_k": 7, "seed": 5}
    metadata = {"who": "me"}
    response = respond(served, metadata=metadata, truncation="auto", **options)[1]
    params = served.engine.params[-1]
    assert (params.temperature, params.top_p, params.max_tokens) == (0.5, 0.25, 99)
    assert (params.top_k, params.seed, params.overflow) == (7, 5, "drop-oldest")
    assert response["metadata"] == metadata and response["temperature"] == 0.5
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    wanted = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    respond(served, text={"format": wanted}, truncation="disabled")
    assert served.engine.constraints[-1] is not None
    assert served.engine.params[-1].overflow == "error"


def test_an_error_after_the_first_event_is_a_failed_response(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*args: Any) -> None:
        raise RuntimeError("out of order")

    for owner, name in ((ItemsChoice, "extended"), (ItemsChoice, "ended"), (generation, "_stream")):
        with serving(folder, {"text": "an answer"}) as served, monkeypatch.context() as patched:
            patched.setattr(owner, name, failing)
            last = respond(served, stream=True)[1][-1]
            assert last["type"] == "response.failed"
            assert last["response"]["error"]["message"] == "internal error"
            assert served.request(f"/v1/responses/{last['response']['id']}")[0] == 404


def test_silence_is_filled_with_comments(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "HEARTBEAT_S", 0.05)
    with serving(folder, {"text": "an answer", "prefill_s": 0.5}) as served:
        text = served.text("/v1/responses", {"model": "model", "input": "hi", "stream": True})
    events = text.split("\n\n")
    assert events[0].startswith("event: response.created")
    assert sum(event.startswith(":") for event in events) > 1
    assert events[-2].startswith("event: response.completed") and events[-1] == ""


def test_the_tokens_of_an_input_are_counted(served: Served) -> None:
    options = {"instructions": "Be brief.", "tools": [WEATHER]}
    response = respond(served, "hello", **options)[1]
    body = {"model": "model", "input": "hello", **options}
    status, found = served.request("/v1/responses/input_tokens", body)
    assert status == 200
    count = strict(InputTokenCountResponse, found)
    assert count.input_tokens == response["usage"]["input_tokens"]
