"""Draft models: proposals of another engine, its blocks, and how many tokens are proposed."""

from dataclasses import replace
from pathlib import Path

import pytest

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.generation.speculation import draft_proposer, speculation_of
from swiftchat.engine.gpu.steps.graphs import Graphs
from swiftchat.engine.schedule.states import StateSlots
from swiftchat.engine.speculation.acceptance import AcceptanceRate
from swiftchat.errors import OutOfMemory, UsageError
from tests.support import tiny
from tests.support.reference import copy_reference

PARAMS = SamplingParams(temperature=0, max_tokens=40, speculate="off")
PROMPT = tiny.random_ids(30, seed=4)
FREE = [1.0] * 9  # costs of steps


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("target")
    tiny.make("llama", path)
    return path


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("draft")
    tiny.make("qwen3", path)
    return path


def with_draft(folder: Path, draft: Engine, **config: object) -> Engine:
    """Return an engine whose steps with proposed tokens cost no more than others."""
    engine = tiny.engine(folder, **config)
    proposer = draft_proposer(draft, engine.vocab_size)
    num_states, sizes = engine.scheduler.states.num_verified, (Graphs(), engine.ctx_size_tokens)
    parts = (engine.decoder, *sizes, proposer, num_states)
    speculation = speculation_of(*parts, is_on_gpu=False)
    speculation.costs.slope, speculation._measures = 0.0, False
    engine.speculation = speculation
    return engine


@tiny.each_backend
def test_a_draft_model_that_is_always_right(folder: Path, native: bool) -> None:
    plain, _ = tiny.run(tiny.engine(folder, kernels=native), {1: PROMPT}, PARAMS)
    draft = tiny.engine(folder, kernels=native)
    engine = with_draft(folder, draft, kernels=native)
    ids, ends = tiny.run(engine, {1: PROMPT}, replace(PARAMS, speculate="draft"))
    assert ids == plain
    speculated = ends[1].speculated
    assert speculated.proposer == "draft"
    assert speculated.acceptance_rate == 1
    assert speculated.mean_accepted > 5
    assert draft.allocator.num_used == 0


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_draft_model_that_is_mostly_wrong(folder: Path, other: Path, temperature: float) -> None:
    """Two answers at a time; the second turn finds the first one in both prefix caches."""
    params = replace(PARAMS, temperature=temperature, seed=3)
    draft = tiny.engine(other, chunk_tokens=16)
    engine, plain = with_draft(folder, draft), tiny.engine(folder)
    prompts = {1: PROMPT, 2: tiny.random_ids(41, seed=5)}
    expected, _ = tiny.run(plain, prompts, params)
    drafted = replace(params, speculate="draft")
    assert tiny.run(engine, prompts, drafted)[0] == expected
    draft.allocator.check_integrity([])
    second = {3: PROMPT + expected[1] + tiny.random_ids(5, seed=6)}
    assert tiny.run(engine, second, drafted)[0] == tiny.run(plain, second, params)[0]
    assert draft.allocator.num_used == 0


def test_a_draft_model_without_room_proposes_nothing(folder: Path, other: Path) -> None:
    """Its cache holds the first answer only in part, its context ends before the second one."""
    plain, _ = tiny.run(tiny.engine(folder), {1: PROMPT}, PARAMS)
    draft = tiny.engine(other, cache_tokens=36, ctx_size_tokens=36)
    engine = with_draft(folder, draft)
    assert tiny.run(engine, {1: PROMPT}, replace(PARAMS, speculate="draft"))[0] == plain
    assert draft.allocator.num_used == 0


def test_canceled_answers_leave_the_draft_model(folder: Path, other: Path) -> None:
    draft = tiny.engine(other)
    engine = with_draft(folder, draft)
    engine.add(1, PROMPT, replace(PARAMS, speculate="auto"))
    for _ in range(6):
        engine.step()
    assert draft.allocator.num_used > 0
    engine.cancel(1)
    engine.step()
    assert draft.allocator.num_used == engine.allocator.num_used == 0


def test_a_failed_draft_step_publishes_no_block(
    folder: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy of a block with a common beginning fails."""
    draft = tiny.engine(other)
    engine, params = with_draft(folder, draft), replace(PARAMS, speculate="draft")
    tiny.run(engine, {1: PROMPT}, params)
    num_cached = draft.allocator.num_cached

    def fails(*_: object) -> None:
        raise MemoryError

    engine.add(2, [*PROMPT[:10], 3, 4, 5], params)
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(draft.decoder.ops, "copy_blocks", fails)
        while engine.has_work:
            engine.step()
    engine.abort_all(OutOfMemory("no memory"))
    draft.allocator.check_integrity([])
    assert draft.allocator.num_cached == num_cached
    assert tiny.run(engine, {3: PROMPT}, params)[0] == tiny.run(engine, {3: PROMPT}, PARAMS)[0]


def test_the_engine_loads_a_draft_model(folder: Path, other: Path, tmp_path: Path) -> None:
    copy_reference("mamba2", tmp_path)
    plain, _ = tiny.run(tiny.engine(folder), {1: PROMPT}, PARAMS)
    for path in (other, tmp_path):
        engine = tiny.engine(folder, draft=str(path))
        ids, _ = tiny.run(engine, {1: PROMPT}, replace(PARAMS, speculate="draft"))
        assert ids == plain


# With native kernels and without.
STATES = ("qwen3_next", "lfm2", "mamba2")


@pytest.mark.parametrize("model_type", STATES)
def test_a_draft_model_with_states(model_type: str, tmp_path: Path) -> None:
    """It is always right, so what it computes after known tokens must not stay in its states."""
    copy_reference(model_type, tmp_path)
    prompts = {1: PROMPT, 2: tiny.random_ids(9, seed=5)}
    plain, _ = tiny.run(tiny.engine(tmp_path), prompts, PARAMS)
    draft = tiny.engine(tmp_path, chunk_tokens=16)
    engine = with_draft(tmp_path, draft)
    drafted = replace(PARAMS, speculate="draft")
    ids, ends = tiny.run(engine, prompts, drafted)
    assert ids == plain
    for end in ends.values():
        assert end.speculated.acceptance_rate == 1
    second = {3: PROMPT + plain[1] + tiny.random_ids(5, seed=6)}
    expected, _ = tiny.run(tiny.engine(tmp_path), second, PARAMS)
    ids, ends = tiny.run(engine, second, drafted)
    assert ids == expected and ends[3].speculated.acceptance_rate == 1
    assert draft.allocator.num_used == 0
    draft.scheduler.states.check_integrity([])


@tiny.each_backend
def test_a_draft_model_with_states_that_is_mostly_wrong(
    folder: Path, tmp_path: Path, native: bool
) -> None:
    """More answers at a time than it has slots for, and some are canceled."""
    copy_reference("qwen3_next", tmp_path)
    plain = tiny.engine(folder, kernels=native)
    draft = tiny.engine(tmp_path, chunk_tokens=16, kernels=native, max_num_seqs=2)
    draft.scheduler.use_states(StateSlots(4, tiny.BLOCK_SIZE, num_verified=1))
    engine = with_draft(folder, draft, kernels=native)
    prompts = {i: tiny.random_ids(9 + 5 * i, seed=i) for i in range(4)}
    expected, _ = tiny.run(plain, prompts, PARAMS)
    drafted = replace(PARAMS, speculate="draft")
    assert tiny.run(engine, prompts, drafted)[0] == expected
    engine.add(7, PROMPT, drafted)
    for _ in range(9):
        engine.step()
    engine.cancel(7)
    engine.step()
    assert tiny.run(engine, prompts, drafted)[0] == expected
    assert draft.allocator.num_used == 0
    draft.scheduler.states.check_integrity([])


def test_errors_of_draft_models(folder: Path) -> None:
    with pytest.raises(UsageError, match="there is no draft model"):
        tiny.engine(folder).add(1, PROMPT, replace(PARAMS, speculate="draft"))
    with pytest.raises(UsageError, match="a draft model needs a single device"):
        EngineConfig(draft="model", tp=2)


def test_the_number_of_proposed_tokens_follows_the_acceptance_rate() -> None:
    good, bad = AcceptanceRate(), AcceptanceRate()
    for n in range(30):
        good.verified(8, 8, n)
        bad.verified(0, 8, n)
    assert good.rate > 0.95 and bad.rate < 0.15
    assert good.best_number(8, 30, FREE, 0.1) == 8
    assert good.best_number(3, 30, FREE, 0.1) == 3
    assert good.best_number(8, 30, FREE, 1.0) == 0  # a draft as slow as the target
    assert bad.best_number(8, 30, FREE, 0.1) in (0, 1)
    assert bad.best_number(8, 30, [1 + 0.2 * k for k in range(9)], 0.1) == 0
    assert bad.best_number(0, 30, FREE, 0.0) == 0


def test_a_bad_draft_model_is_tried_again() -> None:
    rate, costs = AcceptanceRate(), [1 + 0.2 * k for k in range(9)]
    for n in range(30):
        rate.verified(0, 4, n)
    assert rate.best_number(8, 40, costs, 0.1) == 0
    assert rate.best_number(8, 29 + 48, costs, 0.1) == 2
    rate.verified(0, 2, 77)
    assert rate.best_number(8, 77 + 48, costs, 0.1) == 0
    assert rate.best_number(8, 77 + 96, costs, 0.1) == 2
    rate.verified(2, 2, 173)
    assert rate.best_number(8, 174, costs, 0.1) == 0
