"""Tokens that a grammar forces are computed at once; the ids are those of sampling each."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.protocol import Finished
from swiftchat.engine.api.vocabulary import ConstraintSpec
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.generation.forced_tokens import ForcedTokens
from tests.support import tiny
from tests.support.grammars import DIGITS, JSON, LONG, params, run, text
from tests.support.worker_processes import WIDE

Request = tuple[list[int], SamplingParams, ConstraintSpec | None]
REQUESTS: list[Request] = [
    (tiny.random_ids(9), params(1), JSON),
    (tiny.random_ids(5, seed=1), params(2), LONG),
    (tiny.random_ids(21, seed=2), replace(params(3), temperature=0), LONG),
    (tiny.random_ids(4, seed=3), SamplingParams(temperature=0, max_tokens=25), None),
    (tiny.random_ids(4, seed=4), params(5), DIGITS),
    (tiny.random_ids(4, seed=5), replace(params(6), repeat_penalty=1.4), LONG),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    tiny.make("llama", path, **WIDE)
    return path


def step_by_step(folder: Path, **config: Any) -> Engine:
    engine = tiny.engine(folder, **config)
    engine.generations.forced._fast_forward = lambda sequence: []  # type: ignore[method-assign]
    return engine


@pytest.fixture(scope="module")
def expected(folder: Path) -> Iterator[list[list[int]]]:
    engine = step_by_step(folder)
    yield [run(engine, [request])[0][0] for request in REQUESTS]


def test_ids_are_those_of_single_steps(folder: Path, expected: list[list[int]]) -> None:
    engine = tiny.engine(folder)
    assert [run(engine, [request])[0][0] for request in REQUESTS] == expected
    ids, ends = run(engine, REQUESTS)
    assert ids == expected and engine.allocator.num_used == 0
    for i, end in ends.items():
        assert isinstance(end, Finished) and end.completion_tokens == len(ids[i])
    answer = text(ids[1])
    assert answer.startswith("measured_temperature: ") and " degrees, " in answer
    # When blocks run out, with small chunks, and in a context that ends the answers.
    small = tiny.engine(folder, cache_tokens=100, ctx_size_tokens=96, chunk_tokens=8)
    assert run(small, REQUESTS)[0] == expected


def test_it_takes_fewer_steps(folder: Path, expected: list[list[int]]) -> None:
    steps = []
    for engine in (tiny.engine(folder), step_by_step(folder)):
        engine.add(1, *REQUESTS[1])
        steps.append(0)
        while engine.has_work:
            engine.step()
            steps[-1] += 1
    # One for the first token, one each for the digit, the choice and the end, and a few where a
    # longer token than the forced one could follow.
    assert steps[1] >= len(expected[1]) and steps[0] <= 8


@pytest.mark.parametrize("limit", [1, 2, 7, 22, 23, 24, 40])
def test_limits(folder: Path, expected: list[list[int]], limit: int) -> None:
    """An answer ends at `max_tokens` or with the context, within the forced tokens or not."""
    prompt, sampling, spec = REQUESTS[1]
    short = replace(sampling, max_tokens=limit)
    for engine, request in (
        (tiny.engine(folder), (prompt, short, spec)),
        (tiny.engine(folder, ctx_size_tokens=len(prompt) + limit), (prompt, sampling, spec)),
    ):
        ids, ends = run(engine, [request])
        end = ends[0]
        assert ids[0] == expected[1][:limit]
        assert isinstance(end, Finished)
        assert (end.reason, end.completion_tokens) == ("length", limit)


def test_a_stop_id_ends_the_answer_before_it(folder: Path, expected: list[list[int]]) -> None:
    prompt, sampling, spec = REQUESTS[1]
    stops = replace(sampling, stop_ids=(ord("_"),))
    ids, ends = run(tiny.engine(folder), [(prompt, stops, spec)])
    assert text(ids[0]) == "measured"
    assert isinstance(ends[0], Finished) and ends[0].reason == "stop"


def test_a_context_that_slides(folder: Path) -> None:
    """Forced tokens fill the context like others."""
    prompt, sampling, spec = REQUESTS[1]
    sliding = replace(sampling, overflow="sliding", overflow_keep=2)
    engines = (tiny.engine(folder, ctx_size_tokens=20), step_by_step(folder, ctx_size_tokens=20))
    found = [run(engine, [(prompt, sliding, spec)])[0] for engine in engines]
    assert found[0] == found[1] and " degrees, " in text(found[0][0])


def test_logprobs_and_bans_need_every_step(
    folder: Path, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    appended: list[int] = []
    append = ForcedTokens.append
    monkeypatch.setattr(
        *(ForcedTokens, "append"),
        lambda self, s, token: appended.extend(ids := append(self, s, token)) or ids,
    )
    engine = tiny.engine(folder)
    prompt, sampling, spec = REQUESTS[1]
    for some in (
        replace(sampling, logprobs=2),
        replace(sampling, bad_words=((3, 4, 5),)),
        replace(sampling, no_repeat_ngram=50),
    ):
        assert run(engine, [(prompt, some, spec)])[0][0] == expected[1]
    assert not appended
