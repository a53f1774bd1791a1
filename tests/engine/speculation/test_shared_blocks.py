"""Heads know what the model's blocks know, however a sequence came by its blocks."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.schedule import scheduler
from swiftchat.engine.schedule.sequence import TokenSequence
from tests.support import adapters, heads, mtp_models, tiny

PROMPT = tiny.random_ids(30, seed=4)
DRAFT = replace(heads.DRAFT, max_tokens=10, speculate_tokens=2)

Proposals = dict[tuple[int, ...], list[int]]
MakeEngine = Callable[..., Engine]


CHAINS = ["eagle3", "eagle3 native", "glm4_moe", "deepseek_v3"]


@pytest.fixture(scope="module", params=[*CHAINS, "medusa", "medusa native"])
def make(
    request: pytest.FixtureRequest, llama: Path, tmp_path_factory: pytest.TempPathFactory
) -> MakeEngine:
    """Engines with heads of all kinds; unwritten slots must not be read."""
    name, _, backend = request.param.partition(" ")
    folder = tmp_path_factory.mktemp(name)
    if name == "eagle3":
        model, draft = llama, str(heads.write_eagle3(folder, heads.eagle3_tensors()))
    elif name == "medusa":
        model, draft = llama, str(heads.write_medusa(folder, heads.medusa_tensors()))
    else:
        mtp_models.make(name, folder, num_hidden_layers=3)
        model, draft = folder, "mtp"

    def engine(**config: Any) -> Engine:
        config = {"kernels": bool(backend), "num_threads": 1, "ctx_size_tokens": 80, **config}
        made = tiny.engine(model, draft=draft, **config)
        for tensor in made.cache.tensors:
            tensor.fill_(float("nan"))
        return made

    return engine


def proposed(
    engine: Engine, prompts: Mapping[int, list[int]], params: SamplingParams = DRAFT
) -> tuple[Proposals, dict[int, list[int]]]:
    """Return the tokens proposed after each text, and the answers."""
    found = heads.propose_always(engine)
    ids, _ = tiny.run(engine, {key: list(prompt) for key, prompt in prompts.items()}, params)
    return {tuple(tokens): after for tokens, after in found if after}, ids


def assert_those_of_a_fresh_engine(
    make: MakeEngine, found: Proposals, prompts: Mapping[int, list[int]], params: SamplingParams
) -> None:
    expected: Proposals = {}
    for key, prompt in prompts.items():
        expected |= proposed(make(), {key: prompt}, params)[0]
    common = found.keys() & expected.keys()
    assert len(common) > 2 * len(prompts)
    for tokens in common:
        length = min(len(found[tokens]), len(expected[tokens]))
        assert length and found[tokens][:length] == expected[tokens][:length]


@pytest.mark.parametrize("first", [heads.OFF, DRAFT])
def test_prefixes_of_earlier_answers(make: MakeEngine, first: SamplingParams) -> None:
    """Whole blocks of a turn before, and a part of a block: copied, then continued otherwise."""
    engine = make()
    answer = tiny.run(engine, {1: PROMPT}, first)[0][1]
    for prompt in (PROMPT + answer + tiny.random_ids(5, seed=8), [*PROMPT[:22], 7, 8, 9]):
        before = engine.stats()["reused_tokens"]
        found, _ = proposed(engine, {2: prompt})
        assert engine.stats()["reused_tokens"] - before >= 22
        assert_those_of_a_fresh_engine(make, found, {2: prompt}, DRAFT)


def test_prefixes_of_embeddings(make: MakeEngine) -> None:
    engine = make()
    engine.add(1, list(PROMPT), SamplingParams(max_tokens=0, pooling="last"))
    while engine.has_work:
        engine.step()
    prompt = PROMPT + tiny.random_ids(3, seed=9)
    found, _ = proposed(engine, {2: prompt})
    assert engine.stats()["reused_tokens"] >= len(PROMPT) - 1
    assert_those_of_a_fresh_engine(make, found, {2: prompt}, DRAFT)


@pytest.mark.parametrize("length", [28, 30])  # whole blocks, and a block in common
def test_forks(make: MakeEngine, length: int) -> None:
    """Several answers to a prompt, which is computed once."""
    engine, params = make(), replace(DRAFT, temperature=1.5, seed=3)
    found = heads.propose_always(engine)
    prompts = dict.fromkeys(range(3), PROMPT[:length])
    for i, prompt in prompts.items():
        engine.add(i, prompt, replace(params, seed=i))
    while engine.has_work:
        engine.step()
    assert engine.stats()["reused_tokens"] == 2 * length
    answers = {tuple(tokens): after for tokens, after in found if after}
    for i, prompt in prompts.items():
        assert_those_of_a_fresh_engine(make, answers, {i: prompt}, replace(params, seed=i))


def test_preempted_answers(make: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    preempted: list[int] = []
    preempt = scheduler.Scheduler.preempt

    def recorded(self: scheduler.Scheduler, sequence: TokenSequence) -> None:
        preempted.append(sequence.id)
        preempt(self, sequence)

    monkeypatch.setattr(scheduler.Scheduler, "preempt", recorded)
    prompts = {i: tiny.random_ids(9 + 5 * i, seed=i) for i in range(4)}
    engine = make(ctx_size_tokens=48, cache_tokens=60, chunk_tokens=16)
    found, ids = proposed(engine, prompts)
    assert preempted
    assert_those_of_a_fresh_engine(make, found, prompts, DRAFT)
    assert ids == tiny.run(make(), prompts, replace(heads.OFF, max_tokens=10))[0]


@pytest.mark.parametrize("make", ["eagle3", "eagle3 native"], indirect=True)
def test_steps_with_adapters_of_other_answers(
    make: MakeEngine, llama: Path, tmp_path: Path
) -> None:
    """They compute the prompts of plain answers, too."""
    base = transformers.AutoModelForCausalLM.from_pretrained(llama)
    adapters.make_adapter(tmp_path, base, target_modules=adapters.targets("llama"))
    engine, params = make(chunk_tokens=8), replace(DRAFT, speculate_tokens=1)
    found = heads.propose_always(engine)
    engine.add(1, PROMPT[:9], heads.OFF, tuning=adapters.tuning_of(tmp_path))
    engine.add(2, list(PROMPT), params)
    while engine.has_work:
        engine.step()
    drafted = {tuple(tokens): after for tokens, after in found if after}
    assert all(tokens[: len(PROMPT)] == tuple(PROMPT) for tokens in drafted)
    assert_those_of_a_fresh_engine(make, drafted, {2: PROMPT}, params)


@pytest.mark.parametrize("make", CHAINS, indirect=True)
def test_nothing_is_proposed_without_free_blocks(make: MakeEngine) -> None:
    """Nor for the first token of all, which no hidden state precedes."""
    engine = make()
    expected = tiny.run(engine, {1: [5]}, replace(heads.OFF, max_tokens=6))[0]
    found, ids = proposed(engine, {1: [5]}, replace(DRAFT, max_tokens=6))
    assert ids == expected and found and min(map(len, found)) == 2
    engine.scheduler.add(sequence := TokenSequence(9, [5, 6, 7, 8], DRAFT))
    engine.scheduler.schedule()
    sequence.num_computed = 3
    allocator = engine.allocator
    while allocator.num_free + allocator.num_cached:
        allocator.allocate()
    assert engine.speculation._draft is not None
    assert engine.speculation._draft.propose(sequence, 2) == []
