"""Completions: several prompts, the echo of a prompt with its log probabilities, and formats."""

import math
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.chat.endpoint.test_http import Served, serving
from tests.chat.endpoint.test_request_fields import AGE, accepts
from tests.support.cases import each_case
from tests.support.fake_engine import END_ID, make_folder

HALF = round(math.log(0.5), 6)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    answers = ["one", "two", "three", "four"]
    with serving(make_folder(tmp_path / "model"), *answers * 2) as served:
        yield served


def complete(served: Served, **fields: Any) -> Any:
    status, found = served.request("/v1/completions", {"model": "model", **fields})
    assert status == 200, found
    return found


@each_case("prompt", [["a", "bcd"], [[97], [98, 99, 100]]])
def test_several_prompts(prompt: Any, served: Served) -> None:
    """Choice i * n + k is the answer k to the prompt i."""
    served.engine.answers = [{"text": text} for text in ("one", "two", "three", "four") * 2]
    served.engine.prompts, served.engine.params = [], []
    found = complete(served, prompt=prompt, n=2, seed=5)
    assert [choice["text"] for choice in found["choices"]] == ["one", "two", "three", "four"]
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2, 3]
    assert list(map(bytes, served.engine.prompts)) == [b"a", b"a", b"bcd", b"bcd"]
    assert [params.seed for params in served.engine.params] == [5, 6, 5, 6]
    usage = found["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (4, 15)
    texts = ["", "", "", ""]
    for event in complete(served, prompt=prompt, n=2, stream=True, echo=True):
        texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert texts == ["aone", "atwo", "bcdthree", "bcdfour"]


@each_case(
    ("prompt", "text", "tokens"),
    [
        ("añb", "añb", ["a", r"bytes:\xc3", r"bytes:\xb1", "b"]),
        ([97, END_ID, 98], "ab", ["a", "<|im_end|>", "b"]),
        ([97], "a", ["a"]),
    ],
)
@pytest.mark.parametrize("max_tokens", [0, 1])
def test_echo_with_log_probabilities(
    prompt: Any, text: str, tokens: list[str], max_tokens: int, served: Served
) -> None:
    served.engine.answers = [{"text": "one"}, {"text": "one"}]
    fields = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": max_tokens}
    (choice,) = complete(served, **fields)["choices"]
    answer, all_tokens = "o" * max_tokens, tokens + ["o"] * max_tokens
    found = choice["logprobs"]
    assert (choice["text"], choice["finish_reason"]) == (text + answer, "length")
    assert found["tokens"] == all_tokens
    assert found["token_logprobs"] == [None] + [HALF] * (len(all_tokens) - 1)
    assert found["top_logprobs"][1:] == [{token: HALF} for token in all_tokens[1:]]
    assert found["top_logprobs"][0] is None
    assert len(found["text_offset"]) == len(all_tokens)
    events = complete(served, **fields, stream=True)
    pieces = [event["choices"][0] for event in events]
    assert "".join(piece["text"] for piece in pieces) == text + answer
    for name, values in found.items():
        parts = [piece["logprobs"][name] for piece in pieces]
        assert list(chain.from_iterable(parts)) == values


def test_text_offsets_begin_with_the_prompt(served: Served) -> None:
    found = complete(served, prompt="añb", echo=True, logprobs=0)["choices"][0]
    assert found["logprobs"]["text_offset"] == [0, 1, 1, 2, 3, 4, 5]
    assert found["text"] == "añbone"
    plain = complete(served, prompt="añb", logprobs=0)["choices"][0]
    assert plain["logprobs"]["text_offset"] == [0, 1, 2]


@each_case(
    ("fields", "right", "wrong"),
    [
        ({"response_format": {"type": "json_object", "schema": AGE}}, '{"age": 3}', "{}"),
        ({"guided_regex": "[0-9]{2}"}, "42", "4"),
        ({"grammar": 'root ::= "x"+'}, "xx", "y"),
        ({"guided_choice": ["yes", "no"]}, "no", "maybe"),
    ],
)
def test_formats(fields: dict[str, Any], right: str, wrong: str, served: Served) -> None:
    complete(served, prompt="a <think>", **fields)
    assert accepts(served, right) and not accepts(served, wrong)


@each_case(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a"] * 65}, "prompt"),
        ({"prompt": ["a"] * 33, "n": 2}, "prompt"),
        ({"prompt": [[97], [-1]]}, "prompt"),
        ({"prompt": ["a", "b"], "beams": 2}, "beams"),
        ({"prompt": ["a", ""]}, None),
        ({"prompt": [[97], []]}, None),
        ({"prompt": "a", "max_tokens": -3}, "max_tokens"),
        ({"prompt": "a", "n": 2, "best_of": 3}, "best_of"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], param: str | None, served: Served) -> None:
    status, found = served.request("/v1/completions", {"model": "model", **fields})
    assert (status, found["error"]["param"]) == (400, param), found
