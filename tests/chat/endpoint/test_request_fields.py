"""The fields of requests: usual off-values, what is honored, and what is refused."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.chat.endpoint.test_http import TOOLS_TEMPLATE, Served, serving
from tests.support.cases import each_case
from tests.support.fake_engine import make_folder


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = make_folder(tmp_path_factory.mktemp("served") / "model", TOOLS_TEMPLATE)
    with serving(folder, *["an answer"] * 500) as served:
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
