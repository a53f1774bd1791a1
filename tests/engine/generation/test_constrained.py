"""Constrained answers of a tiny random model, through a client of real processes."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.vocabulary import ConstraintSpec
from swiftchat.errors import UsageError
from tests.support import tiny
from tests.support.grammars import DIGITS, JSON, STOP, VOCABULARY, params, text
from tests.support.worker_processes import WIDE, collect


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    tiny.make("llama", path, **WIDE)
    return path


@pytest.fixture(scope="module", params=[1, 2])
def client(folder: Path, request: pytest.FixtureRequest) -> Iterator[EngineClient]:
    """A client of an engine of one rank, and of one of two."""
    config = EngineConfig(
        device="cpu", dtype="float32", block_size=tiny.BLOCK_SIZE, tp=request.param
    )
    with EngineClient(config, folder) as client:
        yield client


@pytest.mark.fault(49)
def test_answers_match_alone_and_together(client: EngineClient) -> None:
    """Beside an answer without a grammar, whose ids stay those it has alone."""
    prompt = tiny.random_ids(9)
    free = SamplingParams(temperature=0, max_tokens=30)
    alone, _ = collect(client.generate(prompt, free))
    plain = client.generate(prompt, free)
    texts = [client.generate(prompt, params(seed), JSON) for seed in range(4)]
    numbers = [client.generate(prompt, params(seed), DIGITS) for seed in range(4)]
    assert collect(plain)[0] == alone
    for generation in texts:
        ids, end = collect(generation)
        found = json.loads(text(ids))
        assert end.reason == "stop" and found.keys() == {"ok", "n"}
        assert isinstance(found["ok"], bool) and found["n"] in (1, 22, 333)
    answers = [collect(generation)[0] for generation in numbers]
    assert all(re.fullmatch("[0-9]{4,9}", text(ids)) for ids in answers)
    again = [collect(client.generate(prompt, params(seed), DIGITS))[0] for seed in range(4)]
    assert again == answers


def test_greedy_and_controls_within_a_grammar(client: EngineClient) -> None:
    greedy = SamplingParams(temperature=0, stop_ids=(STOP,))
    banned = SamplingParams(temperature=0, stop_ids=(STOP,), bad_words=((ord("{"),),))
    ids, _ = collect(client.generate([1, 2, 3], greedy, JSON))
    assert json.loads(text(ids)).keys() == {"ok", "n"}
    with pytest.raises(UsageError, match="banned"):
        collect(client.generate([1, 2, 3], banned, JSON))


def test_an_invalid_grammar_ends_only_its_answer(client: EngineClient) -> None:
    for grammar in ("start: missing", "", "x" * (2 << 20)):
        with pytest.raises(UsageError, match="grammar"):
            collect(client.generate([1], params(1), ConstraintSpec(grammar, VOCABULARY)))
    assert json.loads(text(collect(client.generate([1], params(1), JSON))[0]))
