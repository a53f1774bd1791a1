"""The fields of requests: usual off-values, what is honored, and what is refused."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from llguidance import LLMatcher

from swiftchat.chat.endpoint.answer_formats import FORMATS
from swiftchat.chat.endpoint.fields import CHAT_ONLY, DEFAULTS, REFUSED, WITHOUT_EFFECT
from swiftchat.chat.endpoint.requests import ChatCompletionRequest, CompletionRequest
from swiftchat.engine.schedule.token_trie import TokenTrie
from tests.chat.endpoint.test_http import SERVING_PAGE, TOOLS_TEMPLATE, Served, serving
from tests.support.cases import each_case
from tests.support.fake_engine import make_folder


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = make_folder(tmp_path_factory.mktemp("served") / "model", TOOLS_TEMPLATE)
    with serving(folder, *["an answer"] * 900) as served:
        yield served


@each_case(
    ("options", "name", "expected"),
    [
        ({"max_tokens": -1}, "max_tokens", None),
        ({"max_completion_tokens": -1}, "max_tokens", None),
        ({"n_predict": -1}, "max_tokens", None),
        ({"num_predict": -2}, "max_tokens", None),
        ({"max_tokens": 100.0}, "max_tokens", 100),
        ({"seed": -1}, "seed", None),
        ({"seed": 7.0}, "seed", 7),
        ({"seed": 2**63 + 1}, "seed", 2**63 + 1),
        ({"top_k": -1}, "top_k", 0),
        ({"top_k": 40.0}, "top_k", 40),
        ({"top_p": 0}, "top_p", 1e-6),
        ({"top_p": 1}, "top_p", 1.0),
        ({"temperature": 0}, "temperature", 0.0),
        ({"reasoning_budget": -1}, "reasoning_budget", None),
        ({"reasoning": {"max_tokens": -1}}, "reasoning_budget", None),
        ({"reasoning": {"max_tokens": 9.0}}, "reasoning_budget", 9),
        ({"repeat_last_n": -1}, "repeat_last_n", -1),
        ({"repeat_last_n": 32}, "repeat_last_n", 32),
        ({"min_tokens": 3.0}, "min_tokens", 3),
        ({"logprobs": True, "top_logprobs": 2.0}, "logprobs", 2),
    ],
)
def test_usual_values(options: dict[str, Any], name: str, expected: Any, served: Served) -> None:
    status, found = served.chat(**options)
    assert status == 200, found
    value = getattr(served.engine.params[-1], name)
    assert (value, type(value)) == (expected, type(expected))


@each_case(
    ("options", "param"),
    [
        ({"max_tokens": -3}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 10**400}, "max_tokens"),
        ({"seed": -2}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"top_k": -2}, "top_k"),
        ({"top_p": -0.5}, "top_p"),
        ({"temp": -1}, "temp"),
        ({"n": 1.5}, "n"),
        ({"reasoning": {"max_tokens": -2}}, "reasoning"),
    ],
)
def test_other_values_are_refused_by_name(
    options: dict[str, Any], param: str, served: Served
) -> None:
    status, found = served.chat(**options)
    assert (status, found["error"]["param"]) == (400, param)


def accepts(served: Served, text: str) -> bool:
    """Return whether the last answer had to, or might be, this text."""
    constraint = served.engine.constraints[-1]
    assert constraint is not None
    matcher = LLMatcher(TokenTrie(constraint.vocabulary).tokenizer, constraint.grammar, log_level=0)
    return bool(matcher.consume_tokens(list(text.encode())) and matcher.is_accepting())


AGE = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
IS_AGE = ('{"age": 3}', '{"name": "Rex"}')


@each_case(
    ("options", "right", "wrong"),
    [
        ({"response_format": {"type": "json_object", "schema": AGE}}, *IS_AGE),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": AGE}}}, *IS_AGE),
        ({"response_format": {"type": "json_schema", "schema": AGE}}, *IS_AGE),
        ({"response_format": {"type": "json_object"}}, '{"name": "Rex"}', "Rex"),
        ({"json_schema": AGE}, *IS_AGE),
        ({"guided_json": AGE}, *IS_AGE),
        ({"guided_json": json.dumps(AGE)}, *IS_AGE),
        ({"structured_outputs": {"json": AGE}}, *IS_AGE),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "no", "maybe"),
        ({"guided_regex": "[0-9]{2}"}, "42", "4"),
        ({"guided_choice": ["yes", 'n"o']}, 'n"o', "no"),
        ({"guided_grammar": 'root ::= "a" "b"?'}, "ab", "b"),
        ({"grammar": 'root ::= "x"+'}, "xx", "y"),
        ({"grammar": 'start: "x" | "y"'}, "y", "xy"),
    ],
)
def test_formats_in_the_words_of_other_servers(
    options: dict[str, Any], right: str, wrong: str, served: Served
) -> None:
    status, found = served.chat(**options)
    assert status == 200, found
    assert accepts(served, right) and not accepts(served, wrong)


@each_case(
    ("name", "value"),
    [
        ("response_format", {"type": "json_schema"}),
        ("response_format", {"type": "json_object", "schema": {"type": "odd"}}),
        ("response_format", {"type": "xml"}),
        ("response_format", "json"),
        ("guided_json", "{"),
        ("guided_json", [1]),
        ("guided_json", {"type": "object", "x-guidance": 5}),
        ("guided_regex", "("),
        ("guided_regex", 5),
        ("guided_choice", []),
        ("guided_choice", "yes"),
        ("guided_grammar", "root ::= missing"),
        ("structured_outputs", {"json": AGE, "regex": "a"}),
        ("structured_outputs", {"structural_tag": "x", "regex": "a"}),
        ("structured_outputs", {}),
        ("grammar", 'root ::= "a'),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [2**63]),
        ("stop_token_ids", [0] * 65),
    ],
)
def test_formats_that_cannot_be_enforced(name: str, value: Any, served: Served) -> None:
    status, found = served.chat(**{name: value})
    assert (status, found["error"]["param"]) == (400, name), found


def test_one_request_has_one_format(served: Served) -> None:
    status, found = served.chat(guided_regex="a", guided_json=AGE)
    assert status == 400 and "another field" in found["error"]["message"]
    assert served.chat(guided_regex="a", response_format={"type": "text"})[0] == 200


def test_tokens_and_texts_by_other_names(served: Served) -> None:
    assert served.chat(stop_token_ids=[3, 5.0])[0] == 200
    assert served.engine.params[-1].stop_ids[-2:] == (3, 5)
    assert served.chat(bad_words=["a"])[0] == 200
    assert served.engine.params[-1].bad_words
    assert served.chat()[0] == 200
    assert served.engine.params[-1].bad_words == ()
    assert served.engine.params[-1].stop_ids[-2:] != (3, 5)


@each_case("name", [*REFUSED])
def test_fields_that_change_the_answer_are_refused(name: str, served: Served) -> None:
    for path, prompt in (("chat/completions", "messages"), ("completions", "prompt")):
        given = [{"role": "user", "content": "hi"}] if prompt == "messages" else "hi"
        body = {"model": "model", prompt: given, name: "an odd value"}
        status, found = served.request(f"/v1/{path}", body)
        assert (status, found["error"]["param"]) == (400, name)
    for default in (None, *DEFAULTS.get(name, ())):
        assert served.chat(**{name: default})[0] == 200


def test_fields_without_an_effect_are_accepted(served: Served) -> None:
    assert served.chat(**dict.fromkeys(WITHOUT_EFFECT, "x"))[0] == 200
    honored = {*ChatCompletionRequest.model_fields, *CompletionRequest.model_fields}
    assert not honored & {*REFUSED, *WITHOUT_EFFECT} and not {*REFUSED} & {*WITHOUT_EFFECT}


@each_case("name", ["top_kk", "options", "guided_jsn", "x" * 200, ""])
def test_unknown_fields_are_refused_by_name(name: str, served: Served) -> None:
    """They might change the answer, also those that are only misspelled."""
    message = [{"role": "user", "content": "hi"}]
    for path, given in (
        ("chat/completions", {"messages": message}),
        ("completions", {"prompt": "hi"}),
        ("embeddings", {"input": "hi"}),
    ):
        status, found = served.request(f"/v1/{path}", {"model": "model", **given, name: 0})
        assert (status, found["error"]["param"]) == (400, name[:80])
    assert served.chat(**{name: None})[0] == 200


@each_case("name", [*CHAT_ONLY])
def test_completions_refuse_fields_of_chats(name: str, served: Served) -> None:
    body = {"model": "model", "prompt": "hi", name: {"type": "json_object"}}
    status, found = served.request("/v1/completions", body)
    assert (status, found["error"]["param"]) == (400, name)


def test_the_documentation_lists_all_fields() -> None:
    text = SERVING_PAGE.read_text("utf-8")
    for name in (*REFUSED, *WITHOUT_EFFECT, *FORMATS, *CHAT_ONLY):
        assert f"`{name}`" in text, name


@each_case(
    ("path", "body"),
    [
        ("completions", {"prompt": [1180591620717411303424]}),
        ("completions", {"prompt": [2**63]}),
        ("completions", {"prompt": [-1]}),
        ("embeddings", {"input": [2**64]}),
        ("embeddings", {"input": [[1, 2**64]]}),
    ],
)
def test_huge_ids_are_refused_by_name(path: str, body: dict[str, Any], served: Served) -> None:
    status, found = served.request(f"/v1/{path}", {"model": "model", **body})
    assert (status, found["error"]["param"]) == (400, next(iter(body)))
