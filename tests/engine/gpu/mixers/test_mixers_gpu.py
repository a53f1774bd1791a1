"""Models with states on a GPU against the CPU: decode steps by kernels, in graphs and without."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import Beam, Finished, Tokens
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from tests.support import reference, tiny
from tests.support.mixer_models import GPU_MODELS, NOT_CAPTURED

pytestmark = pytest.mark.gpu
GREEDY = SamplingParams(temperature=0, max_tokens=24)
PLAIN = replace(GREEDY, speculate="off")  # verification steps are graph steps too
PROMPT = tiny.random_ids(22, seed=1)


@pytest.fixture(scope="module", params=GPU_MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    reference.copy_reference(request.param, path, **GPU_MODELS[request.param])
    return path


@pytest.fixture(scope="module")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cubins")


def gpu_engine(folder: Path, cubins: Path, *, graphs: bool = True, **config: Any) -> Engine:
    settings = {"device": "cuda", "dtype": "float32", "block_size": tiny.BLOCK_SIZE, **config}
    engine = build_engine(folder, EngineConfig(**settings), cubins=cubins)
    assert engine.gpu is not None
    # Unwritten slots must never be read.
    for tensor in engine.cache.states.tensors:
        tensor.fill_(float("nan"))
    if not graphs:
        engine.use_graphs(replace(engine.graphs, decode=None))
    return engine


def checked_run(
    engine: Engine, prompts: Mapping[int, list[int]], params: SamplingParams
) -> tuple[dict[int, list[int]], dict[int, tuple[str, int]]]:
    """Return the ids of each answer, and why it ended after how many cached tokens."""
    ids, ends = tiny.run(engine, dict(prompts), params)
    engine.scheduler.check_integrity()
    return ids, {key: (end.reason, end.cached_tokens) for key, end in ends.items()}


@pytest.mark.parametrize("graphs", [True, False])
def test_ids_equal_the_cpu(folder: Path, cubins: Path, graphs: bool) -> None:
    """Alone and batched: chunked prefill, decode steps, and both mixed."""
    prompts = {i: tiny.random_ids(1 + 13 * i, seed=i) for i in range(4)}
    on_cpu, _ = checked_run(tiny.engine(folder), prompts, PLAIN)
    engine = gpu_engine(folder, cubins, graphs=graphs, chunk_tokens=16)
    assert checked_run(engine, prompts, PLAIN)[0] == on_cpu
    for key, prompt in prompts.items():
        assert checked_run(engine, {key: prompt}, PLAIN)[0][key] == on_cpu[key]
    is_captured = graphs and not any(name in folder.name for name in NOT_CAPTURED)
    assert (engine.stats()["graph_steps"] > 0) == is_captured


@pytest.mark.parametrize("graphs", [True, False])
def test_turns_regeneration_and_undo_reuse_the_states_of_the_cpu(
    folder: Path, cubins: Path, graphs: bool
) -> None:
    answers: list[list[Any]] = []
    for engine in (tiny.engine(folder), gpu_engine(folder, cubins, graphs=graphs)):
        found = []
        answer = checked_run(engine, {1: PROMPT}, GREEDY)[0][1]
        second = PROMPT + answer + tiny.random_ids(9, seed=8)
        undone = PROMPT + answer + tiny.random_ids(5, seed=9)
        edited = [*PROMPT[:-1], PROMPT[-1] ^ 1, 7]
        for prompt in (PROMPT, second, second, undone, edited):
            found.append(checked_run(engine, {1: prompt}, GREEDY))
        answers.append(found)
    assert answers[0] == answers[1]
    assert any(ends[1][1] > len(PROMPT) for _, ends in answers[0])


def test_captured_prompts_give_the_ids_of_the_cpu(folder: Path, cubins: Path) -> None:
    """A first turn before, and later ones after the captures, which leave kept states alone."""
    on_cpu, engine = tiny.engine(folder), gpu_engine(folder, cubins)
    first = checked_run(on_cpu, {1: PROMPT}, GREEDY)
    assert checked_run(engine, {1: PROMPT}, GREEDY) == first
    while engine.can_prepare:
        engine.prepare()
    graphs = engine.graphs.prefill
    is_captured = graphs is not None and graphs.is_captured(40)
    assert is_captured != any(name in folder.name for name in NOT_CAPTURED)
    turn = PROMPT + first[0][1] + tiny.random_ids(9, seed=8)
    for prompt in (turn, tiny.random_ids(50, seed=3), turn, PROMPT):
        expected = checked_run(on_cpu, {1: prompt}, GREEDY)
        assert checked_run(engine, {1: prompt}, GREEDY) == expected


def test_an_end_token_leaves_the_state_before_it(folder: Path, cubins: Path) -> None:
    """The step after it has been launched by then; the next turn goes on without it."""
    whole = checked_run(tiny.engine(folder), {1: PROMPT}, GREEDY)[0][1]
    params = SamplingParams(temperature=0, max_tokens=20, stop_ids=(whole[5],))
    on_cpu, on_gpu = tiny.engine(folder), gpu_engine(folder, cubins)
    for length in (3, 9):
        prompts = {1: list(PROMPT), 2: tiny.random_ids(length, seed=3)}
        found = checked_run(on_gpu, prompts, params)
        assert found == checked_run(on_cpu, prompts, params)
        turn = PROMPT + found[0][1] + tiny.random_ids(length, seed=4)
        expected = checked_run(on_cpu, {3: turn}, GREEDY)
        assert checked_run(on_gpu, {3: turn}, GREEDY) == expected
        assert expected[1][3][1] >= len(PROMPT)


def test_canceled_answers_leave_exact_states(folder: Path, cubins: Path) -> None:
    """They end while a step with their next token is in flight."""
    expected = checked_run(tiny.engine(folder), {1: PROMPT}, GREEDY)[0][1]
    engine = gpu_engine(folder, cubins)
    for num_steps in range(2, 9):
        engine.add(1, PROMPT, GREEDY)
        engine.add(2, tiny.random_ids(5, seed=num_steps), GREEDY)
        ids: list[int] = []
        for _ in range(num_steps):
            for key, event in engine.step():
                ids += event.ids if key == 1 and isinstance(event, Tokens) else []
        engine.cancel(1)
        while engine.has_work:
            engine.step()
        engine.scheduler.check_integrity()
        assert ids == expected[: len(ids)]
        found, _ = checked_run(engine, {3: PROMPT + ids}, GREEDY)
        assert found[3][: len(expected) - len(ids)] == expected[len(ids) :]


def test_steps_that_the_host_samples_give_the_same_ids(folder: Path, cubins: Path) -> None:
    engine = gpu_engine(folder, cubins)
    prompts = {i: tiny.random_ids(9 + i, seed=i) for i in range(3)}
    expected, _ = checked_run(engine, prompts, GREEDY)
    logged = SamplingParams(temperature=0, max_tokens=24, logprobs=2)
    assert checked_run(engine, prompts, logged)[0] == expected
    # In one batch with an answer that the device samples.
    engine.add(7, prompts[0], logged)
    engine.add(8, prompts[1], GREEDY)
    found: dict[int, list[int]] = {7: [], 8: []}
    while engine.has_work:
        for key, event in engine.step():
            found[key] += event.ids if isinstance(event, Tokens) else []
    assert found == {7: expected[0], 8: expected[1]}


def test_preemption_changes_no_token(folder: Path, cubins: Path) -> None:
    prompts = {i: tiny.random_ids(20 + i, seed=i) for i in range(4)}
    roomy, _ = checked_run(gpu_engine(folder, cubins), prompts, GREEDY)
    settings = {"cache_tokens": 120, "ctx_size_tokens": 100}
    assert checked_run(gpu_engine(folder, cubins, **settings), prompts, GREEDY)[0] == roomy


def test_answers_to_one_prompt_are_those_of_the_cpu(folder: Path, cubins: Path) -> None:
    params = [SamplingParams(temperature=1.0, seed=seed, max_tokens=9) for seed in range(3)]
    found: list[dict[int, list[int]]] = []
    for engine in (tiny.engine(folder), gpu_engine(folder, cubins)):
        answers: dict[int, list[int]] = {key: [] for key in range(3)}
        for key, each in enumerate(params):
            engine.add(key, PROMPT, each)
        while engine.has_work:
            for key, event in engine.step():
                engine.scheduler.check_integrity()
                answers[key] += event.ids if isinstance(event, Tokens) else []
        found.append(answers)
    assert found[0] == found[1]


def test_beams_equal_the_cpu(folder: Path, cubins: Path) -> None:
    params = SamplingParams(temperature=0, beams=4, returned_beams=4, max_tokens=8)
    found: list[list[Beam]] = []
    for engine in (tiny.engine(folder), gpu_engine(folder, cubins)):
        engine.add(1, PROMPT, params)
        events: list[object] = []
        while engine.has_work:
            events += [event for _, event in engine.step()]
            engine.scheduler.check_integrity()
        assert any(isinstance(event, Finished) for event in events)
        found.append([event for event in events if isinstance(event, Beam)])
    assert [beam.ids for beam in found[0]] == [beam.ids for beam in found[1]]
    for one, other in zip(*found, strict=True):
        assert one.score == pytest.approx(other.score, rel=1e-4, abs=1e-4)


def test_more_rows_than_the_kernels_of_experts_take(folder: Path, cubins: Path) -> None:
    prompts = {i: tiny.random_ids(3 + i % 21, seed=i) for i in range(21)}
    params = SamplingParams(temperature=0, max_tokens=8)
    settings = {"max_num_seqs": 21, "cache_tokens": 64 * 21}
    on_cpu, _ = checked_run(tiny.engine(folder, **settings), prompts, params)
    assert checked_run(gpu_engine(folder, cubins, **settings), prompts, params)[0] == on_cpu
