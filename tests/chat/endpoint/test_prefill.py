"""The last message of a request is the beginning of the answer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chat.endpoint.test_http import Served, serving
from tests.chat.endpoint.test_request_fields import AGE
from tests.support.cases import each_case
from tests.support.fake_engine import TOOL_TEMPLATE, make_folder

USER = {"role": "user", "content": "hi"}
BEGUN = {"role": "assistant", "content": "The <|im_end|> answer "}
TURN = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(make_folder(tmp_path / "model", TOOL_TEMPLATE), *["is 3"] * 9) as served:
        yield served


@each_case("fields", [{}, {"continue_final_message": True, "add_generation_prompt": False}])
def test_the_answer_continues_the_last_message(fields: dict[str, Any], served: Served) -> None:
    status, found = served.chat(USER, BEGUN, **fields)
    assert status == 200, found
    assert served.engine.prompt_text() == TURN + BEGUN["content"]
    assert found["choices"][0]["message"]["content"] == "is 3"
    pieces = served.chat(USER, BEGUN, stream=True, **fields)[1]
    assert "".join(one["choices"][0]["delta"].get("content", "") for one in pieces) == "is 3"


@each_case("fields", [{"continue_final_message": False}, {"add_generation_prompt": True}])
def test_unless_the_request_says_otherwise(fields: dict[str, Any], served: Served) -> None:
    assert served.chat(USER, BEGUN, **fields)[0] == 200
    assert served.engine.prompt_text().endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_a_message_of_the_assistant_alone(served: Served) -> None:
    assert served.chat(BEGUN)[0] == 200
    assert served.engine.prompt_text() == "<|im_start|>assistant\n" + BEGUN["content"]
    assert served.chat(USER, {**BEGUN, "content": None})[0] == 200
    assert served.engine.prompt_text() == TURN


def test_formats_and_tools_know_the_beginning(served: Served) -> None:
    form = {"type": "json_object", "schema": AGE}
    assert served.chat(USER, {**BEGUN, "content": '{"a'}, response_format=form)[0] == 200
    constraint = served.engine.constraints[-1]
    assert constraint is not None and constraint.begun == '{"a'
    tools = [{"type": "function", "function": {"name": "weather"}}]
    assert served.chat(USER, BEGUN, tools=tools)[0] == 200
    assert served.engine.prompt_text().endswith(TURN + BEGUN["content"])


@each_case(("name", "value"), [("continue_final_message", True), ("add_generation_prompt", False)])
def test_there_must_be_something_to_continue(name: str, value: bool, served: Served) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for last in (USER, {"role": "assistant", "content": None, "tool_calls": [call]}):
        status, found = served.chat(USER, last, **{name: value})
        assert (status, found["error"]["param"]) == (400, name)
