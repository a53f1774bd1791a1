"""Constrained answers on a GPU: masks applied in the captured step, with the ids of the CPU."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.vocabulary import ConstraintSpec
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from swiftchat.errors import UsageError
from tests.support import reference, tiny
from tests.support.grammars import DIGITS, JSON, LONG, STOP, params, run, text
from tests.support.mixer_models import GPU_MODELS
from tests.support.worker_processes import WIDE, collect

pytestmark = pytest.mark.gpu
FREE = SamplingParams(temperature=0, max_tokens=40)
PENALIZED = replace(params(5), repeat_penalty=1.3, frequency_penalty=0.4, top_p=0.9, min_tokens=6)
# Beside each other: answers with and without grammars, of different lengths.
REQUESTS: list[tuple[list[int], SamplingParams, ConstraintSpec | None]] = [
    (tiny.random_ids(9), params(1), JSON),
    (tiny.random_ids(30, seed=1), FREE, None),
    (tiny.random_ids(4, seed=2), params(2), DIGITS),
    (tiny.random_ids(17, seed=3), replace(params(3), temperature=0), JSON),
    (tiny.random_ids(6, seed=4), PENALIZED, JSON),
    (tiny.random_ids(6, seed=5), replace(params(6), stop_ids=()), None),
]


@pytest.fixture(scope="module", params=["llama", "gpt2"])  # with the fused kernels and without
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    tiny.make(request.param, path, **WIDE)
    return path


@pytest.fixture(scope="module")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cubins")


def gpu_engine(folder: Path, cubins: Path, **config: Any) -> Engine:
    settings = {"device": "cuda", "dtype": "float32", "block_size": tiny.BLOCK_SIZE, **config}
    return build_engine(folder, EngineConfig(**settings), cubins=cubins)


def test_ids_equal_the_cpu_alone_and_together(folder: Path, cubins: Path) -> None:
    expected = [run(tiny.engine(folder), [request])[0][0] for request in REQUESTS]
    engine = gpu_engine(folder, cubins)
    alone = [run(engine, [request])[0][0] for request in REQUESTS]
    assert alone == expected
    before = engine.stats()["graph_steps"]
    assert run(engine, REQUESTS)[0] == expected
    # All but the prompts and the steps after an answer has ended; none waits for the host.
    assert engine.stats()["graph_steps"] - before >= max(map(len, expected)) - 3 * len(REQUESTS)
    assert json.loads(text(expected[0])).keys() == {"ok", "n"}
    assert engine.allocator.num_used == 0
    without = gpu_engine(folder, cubins)
    without.use_graphs(replace(without.graphs, decode=None))
    assert run(without, REQUESTS)[0] == expected


def test_ids_equal_the_cpu_when_blocks_run_out(folder: Path, cubins: Path) -> None:
    """Sequences are preempted and resumed; their grammars go on."""
    expected = [run(tiny.engine(folder), [request])[0][0] for request in REQUESTS]
    engine = gpu_engine(folder, cubins, ctx_size_tokens=192, cache_tokens=196)
    assert run(engine, REQUESTS)[0] == expected


def check_forced_tokens(folder: Path, cubins: Path) -> None:
    """Forced tokens of an answer that runs alone are captured chunks, with the same ids."""
    requests = [(tiny.random_ids(5, seed=i), params(i), LONG) for i in range(3)]
    expected = [run(tiny.engine(folder), [request])[0][0] for request in requests]
    engine = gpu_engine(folder, cubins)
    assert run(engine, requests)[0] == expected
    while engine.can_prepare:
        engine.prepare()
    assert run(engine, requests)[0] == expected
    for request, ids in zip(requests, expected, strict=True):
        before = engine.stats()["graph_steps"]
        assert run(engine, [request])[0][0] == ids
        assert engine.stats()["graph_steps"] - before < len(ids) // 3
    # A step that was in flight is discarded, also for the answers after it.
    assert run(engine, [REQUESTS[1], requests[0]])[0] == [
        run(tiny.engine(folder), [REQUESTS[1]])[0][0],
        expected[0],
    ]


def test_forced_tokens_are_computed_in_captured_chunks(folder: Path, cubins: Path) -> None:
    check_forced_tokens(folder, cubins)


@pytest.mark.parametrize("name", ["qwen3_next", "lfm2", "granitemoehybrid"])
def test_forced_tokens_of_models_with_states(name: str, tmp_path: Path, cubins: Path) -> None:
    reference.copy_reference(name, tmp_path, vocab_size=WIDE["vocab_size"], **GPU_MODELS[name])
    check_forced_tokens(tmp_path, cubins)


def test_cancel_between_the_parts_of_a_step(folder: Path, cubins: Path) -> None:
    """The forward pass of a step is in flight while its answer is canceled; others go on."""
    engine = gpu_engine(folder, cubins)
    expected = [run(engine, [request])[0][0] for request in REQUESTS[:2]]
    for num_steps in (3, 4, 5):
        engine.add(7, *REQUESTS[2])
        for _ in range(num_steps):
            engine.step()
        engine.cancel(7)
        assert run(engine, REQUESTS[:2])[0] == expected
    assert engine.allocator.num_used == 0


def test_only_banned_tokens_are_left(folder: Path, cubins: Path) -> None:
    engine = gpu_engine(folder, cubins)
    for temperature in (0.0, 1.0):
        banned = SamplingParams(
            temperature=temperature, stop_ids=(STOP,), bad_words=((ord(":"),),), seed=1
        )
        ids, ends = run(engine, [(REQUESTS[0][0], banned, JSON), REQUESTS[1]])
        error = ends[0]
        assert isinstance(error, UsageError) and "banned" in error.message
        assert len(ids[1]) == FREE.max_tokens


@pytest.mark.gpus(2)
def test_several_ranks_mask_alike(folder: Path) -> None:
    config = EngineConfig(device="cuda", dtype="float32", block_size=tiny.BLOCK_SIZE, tp=2)
    expected = [run(tiny.engine(folder), [request])[0][0] for request in REQUESTS]
    with EngineClient(config, folder) as client:
        generations = [client.generate(*request) for request in REQUESTS]
        assert [collect(generation)[0] for generation in generations] == expected
