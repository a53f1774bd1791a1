"""Speculation for models with states by the kernels of a GPU, and by their emulation on the CPU.

Ids are those of plain decoding, and states are exact after it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import Tokens
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from tests.engine.speculation.test_mtp import BesideReference
from tests.support import heads, mtp_models, reference, tiny
from tests.support.emulated.engine import emulated_engine, use_emulated_gpu
from tests.support.mixer_models import GPU_MODELS, NOT_CAPTURED
from tests.support.speculation import use_oracle

MakeEngine = Callable[..., Engine]
OFF = SamplingParams(temperature=0, max_tokens=16, speculate="off")
AUTO = replace(OFF, speculate="auto")
PROMPT = tiny.random_ids(22, seed=1)
PROMPTS = {i: tiny.random_ids(1 + 13 * i, seed=i) for i in range(3)}


@pytest.fixture(scope="module", params=["emulated", pytest.param("gpu", marks=pytest.mark.gpu)])
def is_emulated(request: pytest.FixtureRequest) -> Iterator[bool]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        if request.param == "emulated":
            use_emulated_gpu(monkeypatch)
        yield request.param == "emulated"


@pytest.fixture(scope="module")
def make_any(is_emulated: bool, tmp_path_factory: pytest.TempPathFactory) -> MakeEngine:
    cubins = tmp_path_factory.mktemp("cubins")

    def make(folder: Path, **config: Any) -> Engine:
        if is_emulated:
            return emulated_engine(folder, **config)
        settings = {"dtype": "float32", "block_size": tiny.BLOCK_SIZE, **config}
        engine = build_engine(folder, EngineConfig(device="cuda", **settings), cubins=cubins)
        # Unwritten slots must never be read.
        for tensor in engine.cache.states.tensors:
            tensor.fill_(float("nan"))
        return engine

    return make


# Without a GPU, one model for each kernel, and one whose steps are not captured.
KERNELS = ("lfm2", "qwen3_next", "granitemoehybrid", "mamba", "nemotron_h")
# One whose steps are captured, and one whose steps are not.
SCHEDULED = ("qwen3_next", "nemotron_h")


def emulated(names: tuple[str, ...]) -> list[Any]:
    """Return all models, those without a name among these only for a GPU."""
    on_gpu = pytest.mark.gpu
    return [n if n in names else pytest.param(n, marks=on_gpu) for n in GPU_MODELS]


# For what the scheduler and the states do with any kernel.
emulate_few = pytest.mark.parametrize("folder", emulated(SCHEDULED), indirect=True)


@pytest.fixture(scope="module", params=emulated(KERNELS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    reference.copy_reference(request.param, path, **GPU_MODELS[request.param])
    return path


@pytest.fixture(scope="module")
def make(make_any: MakeEngine, folder: Path) -> MakeEngine:
    def make(**config: Any) -> Engine:
        engine = make_any(folder, **config)
        is_captured = not any(name in folder.name for name in NOT_CAPTURED)
        assert (engine.graphs.verification is not None) == is_captured
        assert engine.scheduler.states.num_verified == 8
        return engine

    return make


@pytest.fixture(scope="module")
def plain(make: MakeEngine) -> Engine:
    """An engine that verifies nothing."""
    return make()


def run(
    engine: Engine, prompts: Mapping[int, list[int]], params: SamplingParams
) -> dict[int, list[int]]:
    ids, _ = tiny.run(engine, dict(prompts), params)
    engine.scheduler.check_integrity()
    return ids


@pytest.mark.parametrize(
    ("graphs", "temperature"),
    [
        (True, 0.9),
        (False, 0.0),
        # Most other tests take greedy tokens with graphs.
        pytest.param(True, 0.0, marks=pytest.mark.gpu),
        pytest.param(False, 0.9, marks=pytest.mark.gpu),
    ],
)
def test_ids_are_those_of_plain_decoding(
    make: MakeEngine, plain: Engine, graphs: bool, temperature: float
) -> None:
    """Alone and together; without graphs the decoder's operations verify."""
    off = replace(OFF, temperature=temperature, seed=5)
    auto = replace(off, speculate="auto")
    expected = run(plain, PROMPTS, off)
    engine = use_oracle(make(), expected, eager=True)
    if not graphs:
        engine.use_graphs(replace(engine.graphs, decode=None, verification=None))
    for key, prompt in PROMPTS.items():
        ids, ends = tiny.run(engine, {key: prompt}, auto)
        assert ids[key] == expected[key]
        speculated = ends[key].speculated
        assert speculated is not None and 8 < speculated.num_accepted < speculated.num_proposed
        engine.scheduler.check_integrity()
    assert run(engine, PROMPTS, auto) == expected


def test_turns_and_undo_after_accepted_tokens_are_exact(make: MakeEngine, plain: Engine) -> None:
    """An answer may end within accepted tokens: at a length, or at a token."""
    whole = run(plain, {1: PROMPT}, OFF)
    verified = use_oracle(make(), whole, eager=True)
    for end in (11, 16):
        stop = replace(AUTO, stop_ids=(whole[1][end],)) if end < 16 else AUTO
        for params in dict.fromkeys((stop, replace(AUTO, max_tokens=end))):  # once if equal
            ids = run(verified, {1: PROMPT}, params)[1]
            assert ids == whole[1][: len(ids)]
            for length, shortened in ((5, 0), (3, 2)):  # a further turn, an edited one
                answer = ids[: len(ids) - shortened]
                turn = {2: PROMPT + answer + tiny.random_ids(length, seed=8)}
                short = replace(OFF, max_tokens=5)
                expected = run(plain, turn, short)
                found, ends = tiny.run(verified, turn, short)
                assert found == expected
                assert shortened or ends[2].cached_tokens >= len(PROMPT) + len(answer) - 9


@emulate_few
@pytest.mark.parametrize("eager", [True, False])
def test_preempted_and_canceled_answers_are_exact(
    make: MakeEngine, plain: Engine, eager: bool
) -> None:
    """Without `eager` some steps are verified, and others are launched ahead and discarded."""
    prompts = {i: tiny.random_ids(20 + i, seed=i) for i in range(4)}
    expected = run(plain, prompts, OFF)
    small = {"cache_tokens": 120, "ctx_size_tokens": 100}
    engine = use_oracle(make(**small), expected, eager=eager)
    assert run(engine, prompts, AUTO) == expected
    for num_steps in (2, 3, 5):
        engine.add(1, prompts[1], AUTO)
        engine.add(2, prompts[2], AUTO)
        ids = [token for _ in range(num_steps) for token in tokens_of(engine, 1)]
        engine.cancel(1)
        while engine.has_work:
            engine.step()
        engine.scheduler.check_integrity()
        assert ids == expected[1][: len(ids)]
        if len(ids) < len(expected[1]):
            rest = replace(OFF, max_tokens=len(expected[1]) - len(ids))
            assert run(engine, {3: prompts[1] + ids}, rest)[3] == expected[1][len(ids) :]


def tokens_of(engine: Engine, number: int) -> Iterator[int]:
    """Yield the tokens that a step gives a generation."""
    for key, event in engine.step():
        if key == number and isinstance(event, Tokens):
            yield from event.ids


@emulate_few
def test_few_slots(make: MakeEngine, plain: Engine) -> None:
    """Snapshots are dropped, and some sequences have no slots for proposed tokens."""
    expected = run(plain, PROMPTS, OFF)
    engine = use_oracle(make(), expected, eager=True)
    states = type(engine.scheduler.states)
    few = states(9, tiny.BLOCK_SIZE, has_spares=True, num_verified=2)
    engine.scheduler.use_states(few)
    for _ in range(3):  # until every slot has been used, the first one too
        assert run(engine, PROMPTS, AUTO) == expected


@emulate_few
def test_look_up_between_async_steps(make: MakeEngine, plain: Engine) -> None:
    """With the engine's own proposer, which finds the next tokens in prompts and answers."""
    params = replace(OFF, max_tokens=40)
    prompts = {1: [5, 6, 7, 8, 9, 10, 11, 12] * 6, 2: tiny.random_ids(30, seed=2)}
    expected = run(plain, prompts, params)
    engine = make()
    engine.speculation.costs = type(engine.speculation.costs)(0.0)
    ids, ends = tiny.run(engine, prompts, replace(params, speculate="auto"))
    assert ids == expected
    speculated = [end.speculated for end in ends.values() if end.speculated is not None]
    assert engine.graphs.verification is None or any(each.num_proposed > 0 for each in speculated)


@emulate_few
def test_a_draft_model_with_states(make: MakeEngine, folder: Path, plain: Engine) -> None:
    """It is always right, so what it computes after known tokens must not stay in its states."""
    engine = make(draft=str(folder))
    heads.propose_always(engine)
    drafted = replace(OFF, speculate="draft")
    for key, prompt in ((1, PROMPT), (2, tiny.random_ids(5, seed=3))):
        expected = run(plain, {key: prompt}, OFF)
        ids, ends = tiny.run(engine, {key: prompt}, drafted)
        assert ids == expected
        assert (ends[key].speculated is not None) == (engine.graphs.verification is not None)
        assert ends[key].speculated is None or ends[key].speculated.acceptance_rate == 1
        turn = {key: prompt + ids[key] + tiny.random_ids(4, seed=7)}
        assert run(engine, turn, drafted) == run(plain, turn, OFF)


@pytest.mark.parametrize(
    "model_type",
    ["qwen3_next", "qwen3_5_text", pytest.param("qwen3_5_moe_text", marks=pytest.mark.gpu)],
)
def test_the_models_own_prediction_layer(
    make_any: MakeEngine, model_type: str, tmp_path: Path
) -> None:
    """Its proposals are those of transformers; steps with them are captured."""
    made = tmp_path, mtp_models.make_beside(model_type, tmp_path)
    expected = run(make_any(tmp_path), PROMPTS, OFF)
    engine = make_any(tmp_path, draft="mtp")
    assert heads.is_captured(engine)
    proposals = heads.propose_always(engine)
    ids, ends = tiny.run(engine, PROMPTS, replace(OFF, speculate="draft", speculate_tokens=3))
    assert ids == expected
    assert engine.graphs.verification is not None
    assert ends[1].speculated is not None and ends[1].speculated.proposer == "mtp"
    assert len(proposals) > 20 and all(proposed for _, proposed in proposals)
    beside = BesideReference(made)
    for tokens, proposed in (*proposals[1::12], proposals[-1]):
        beside.check(tokens, proposed)
    turn = {3: PROMPTS[2] + expected[2] + tiny.random_ids(70, seed=5)}  # more than a graph takes
    ids = run(engine, turn, replace(OFF, speculate="draft", speculate_tokens=7))
    assert ids == run(make_any(tmp_path), turn, OFF)
    beside.check(*proposals[-1])
