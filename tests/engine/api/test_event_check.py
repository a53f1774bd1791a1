"""Events of an engine that contradict the request, or never end, end the connection instead."""

import math
from typing import Any

import pytest

from swiftchat.engine.api import event_check
from swiftchat.engine.api.event_check import EventCheck
from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.protocol import (
    Beam,
    Embedding,
    Event,
    Finished,
    Logprob,
    Prefill,
    PromptLogprobs,
    Speculated,
    Tokens,
)
from swiftchat.engine.api.wire import WireError

ONE = Logprob(-1.0, [(3, -1.0)])
FINISHED = Finished("stop", 3, 0, 1, 0.1, 0.1, 7)
EMBEDS: dict[str, Any] = {"pooling": "mean", "max_tokens": 0}


def run(events: list[Event], **params: Any) -> None:
    check = EventCheck([1, 2, 3], SamplingParams(**params))
    for event in events:
        check.check(event)


@pytest.mark.parametrize(
    ("events", "params"),
    [
        ([Tokens([5, 6]), FINISHED], {}),
        ([Tokens([5, 6], [ONE, ONE]), Tokens([]), FINISHED], {"logprobs": 1}),
        ([PromptLogprobs([ONE]), PromptLogprobs([ONE]), FINISHED], {"prompt_logprobs": 0}),
        ([Embedding([1.0]), FINISHED], EMBEDS),
        ([Finished("interrupt", 3, 0, 0, 0.1, 0.1, 7)], EMBEDS),
        ([Beam([5], -1.0, "stop")] * 2, {"beams": 2, "returned_beams": 2, "temperature": 0.0}),
        ([Tokens([5], [Logprob(math.nan, [(1, -math.inf)])])], {"logprobs": 1}),
        ([Finished("stop", 3, 0, 1, 0.1, 0.1, 7, Speculated("ngram", 1, 1, 0, 1.0))], {}),
    ],
)
def test_honest_events_pass(events: list[Event], params: dict[str, Any]) -> None:
    run(events, **params)


@pytest.mark.parametrize(
    ("events", "params", "message"),
    [
        ([Tokens([5, 6], [ONE])], {"logprobs": 1}, "1 logprobs of 2 tokens"),
        ([Tokens([5, 6])], {"logprobs": 1}, "0 logprobs of 2 tokens"),
        ([Tokens([5], [ONE, ONE])], {}, "2 logprobs of 1 tokens"),
        ([Tokens([5], [Logprob(1e308, [])])], {"logprobs": 0}, "a logprob above 0"),
        ([PromptLogprobs([Logprob(-1.0, [(1, 9.0)])])], {"prompt_logprobs": 1}, "above 0"),
        ([PromptLogprobs([ONE] * 3)], {"prompt_logprobs": 1}, "more than was asked for"),
        ([FINISHED], EMBEDS, "the embedding is missing"),
        ([Embedding([1.0])] * 2, EMBEDS, "more than was asked for"),
        ([Beam([5], -1.0, "stop")] * 2, {"beams": 2, "temperature": 0.0}, "more than was asked"),
        ([Beam([5], -1.0, "stop")], {"logprobs": 1}, "more than was asked for"),
        (
            [Finished("stop", 3, 0, 1, 0.1, 0.1, 7, Speculated("ngram", 0, 0, 0, 1.0))],
            {},
            "speculation without a step",
        ),
    ],
)
def test_contradictions_raise(events: list[Event], params: dict[str, Any], message: str) -> None:
    with pytest.raises(WireError, match=message):
        run(events, **params)


@pytest.mark.parametrize("event", [Tokens([5] * 10), Prefill(1, 2), Tokens([])])
def test_endless_events_raise(event: Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_check, "_MAX_VALUES", 1000)
    with pytest.raises(WireError, match="more than was asked for"):
        run([event] * 2000)
