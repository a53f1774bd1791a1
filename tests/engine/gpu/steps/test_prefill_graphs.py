"""Prefill chunks replayed from graphs against the same chunks computed without."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.gpu.capture import Captured
from swiftchat.engine.gpu.graph_sizes import PREFILL_TOKENS
from swiftchat.engine.schedule.batch import Batch
from tests.support import tiny

pytestmark = pytest.mark.gpu
MODELS = (
    *tiny.VARIANTS,
    "qwen3",
    "gemma2",
    "smollm3",
    "olmo2",
    "gpt2",
    "bloom",
    "falcon-40b",
    "qwen3-moe",
)
SCHEMES = ("int8", "int4", "fp8", "fp8-block", "mxfp4", "nvfp4")
GREEDY = SamplingParams(temperature=0, max_tokens=8)


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    tiny.make(request.param, path)
    return path


@pytest.fixture(scope="module")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cubins")


def prepared_engine(folder: Path, cubins: Path, **config: object) -> Engine:
    settings = {"device": "cuda", "dtype": "float32", "block_size": tiny.BLOCK_SIZE, **config}
    engine = build_engine(folder, EngineConfig(**settings), cubins=cubins)  # type: ignore[arg-type]
    while engine.can_prepare:
        engine.prepare()
    return engine


def recorded(engine: Engine) -> list[int]:
    """Return a list that receives the size of every replayed chunk."""
    replayed: list[int] = []
    graphs = engine.graphs.prefill
    assert graphs is not None and graphs._graphs

    class Recorded:
        def __init__(self, size: int, graph: Captured[Any]) -> None:
            self._size, self._graph = size, graph

        def replay(self) -> Any:
            replayed.append(self._size)
            return self._graph.replay()

    graphs._graphs = {size: Recorded(size, graph) for size, graph in graphs._graphs.items()}  # type: ignore[misc]
    return replayed


def graph_size(num_tokens: int) -> int:
    return next(size for size in PREFILL_TOKENS if size >= num_tokens)


def test_ids_equal_those_without_graphs(folder: Path, cubins: Path) -> None:
    """First and second turns of odd sizes; the second reads blocks that the first wrote."""
    engine = prepared_engine(folder, cubins)
    plain = build_engine(
        folder,
        EngineConfig(device="cuda", dtype="float32", block_size=tiny.BLOCK_SIZE),
        cubins=cubins,
    )
    replayed, expected_replays = recorded(engine), []
    for turn, num_tokens in enumerate((2, 15, 16, 17, 63, 100, 129)):
        prompt = tiny.random_ids(num_tokens, seed=turn)
        answers = [tiny.run(each, {1: prompt}, GREEDY)[0][1] for each in (engine, plain)]
        assert answers[0] == answers[1]
        second = prompt + answers[0] + tiny.random_ids(num_tokens % 31 + 2, seed=turn + 50)
        results = [tiny.run(each, {2: second}, GREEDY) for each in (engine, plain)]
        assert results[0][0] == results[1][0]
        cached = results[0][1][2].cached_tokens
        assert cached >= num_tokens
        expected_replays += [graph_size(num_tokens), graph_size(len(second) - cached)]
    assert replayed == expected_replays


def test_logits_of_padded_chunks(folder: Path, cubins: Path) -> None:
    """Close to those without padding; bitwise equal to those of a padded chunk without a graph."""
    engine = prepared_engine(folder, cubins)
    graphs, forward = engine.graphs.prefill, engine.decoder.forward
    assert graphs is not None
    replay, captured = graphs.forward, dict(graphs._graphs)
    rows: list[tuple[Tensor, ...]] = []

    def three_ways(batch: Batch, size: int) -> Tensor | None:
        found = replay(batch, size)
        assert found is not None
        replayed = found.clone()
        graphs._graphs = {}
        without_graph, without_padding = replay(batch, size), forward(batch, engine.cache)
        graphs._graphs = captured
        assert without_graph is not None and without_padding is not None
        rows.append((replayed, without_graph, without_padding))
        return replayed

    graphs.forward = three_ways  # type: ignore[method-assign]
    params = SamplingParams(temperature=0, max_tokens=1)
    for num_tokens in (3, 16, 31, 90, 200):
        tiny.run(engine, {1: tiny.random_ids(num_tokens, seed=num_tokens)}, params)
    assert len(rows) == 5
    for replayed, without_graph, without_padding in rows:
        assert replayed.shape == without_padding.shape == (1, engine.vocab_size)
        assert torch.equal(replayed, without_graph)
        torch.testing.assert_close(replayed, without_padding, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("model", ["smollm2-135m", *(f"smollm2-135m:{s}" for s in SCHEMES)])
def test_logprobs_do_not_depend_on_what_was_captured(cubins: Path, model: str) -> None:
    """bf16 with tensor-core attention; the cache of the second prompt is the first's."""
    found = []
    for use_graphs in (True, False):
        config = EngineConfig(device="cuda", dummy=model, ctx_size_tokens=1024)
        engine = build_engine(Path(), config, cubins=cubins)
        while use_graphs and engine.can_prepare:
            engine.prepare()
        prompt = tiny.random_ids(300, seed=1)
        params = SamplingParams(temperature=0, max_tokens=1, logprobs=5)
        found.append([tiny.logprobs(engine, prompt[:n], params) for n in (40, 300)])
    assert found[0] == found[1]


def test_which_chunks_are_replayed(tmp_path: Path, cubins: Path) -> None:
    """Several sequences in a step; chunks before the end of a prompt are replayed."""
    tiny.make("llama", tmp_path)
    engine = prepared_engine(tmp_path, cubins, chunk_tokens=32)
    replayed = recorded(engine)
    on_cpu = tiny.engine(tmp_path)
    together = {i: tiny.random_ids(10, seed=i) for i in range(3)}
    assert tiny.run(engine, together, GREEDY)[0] == tiny.run(on_cpu, together, GREEDY)[0]
    assert replayed == []
    long = {5: tiny.random_ids(75, seed=9)}
    assert tiny.run(engine, long, GREEDY)[0] == tiny.run(on_cpu, long, GREEDY)[0]
    assert replayed == [32, 32, graph_size(75 - 2 * 32)]


def test_no_memory_for_a_graph(tmp_path: Path, cubins: Path) -> None:
    """The sizes that were captured are used; others are computed without a graph."""
    tiny.make("llama", tmp_path)
    settings = {"device": "cuda", "dtype": "float32", "block_size": tiny.BLOCK_SIZE}
    engine = build_engine(tmp_path, EngineConfig(**settings), cubins=cubins)
    graphs = engine.graphs.prefill
    assert graphs is not None
    capture = graphs._capture

    def capture_small(size: int) -> Captured[Any]:
        if size > PREFILL_TOKENS[1]:
            raise torch.OutOfMemoryError("no memory")
        return capture(size)

    graphs._capture = capture_small  # type: ignore[method-assign]
    while engine.can_prepare:
        engine.prepare()
    replayed = recorded(engine)
    on_cpu = tiny.engine(tmp_path)
    for num_tokens in (30, 60):
        prompt = {1: tiny.random_ids(num_tokens, seed=num_tokens)}
        assert tiny.run(engine, prompt, GREEDY)[0] == tiny.run(on_cpu, prompt, GREEDY)[0]
    assert replayed == [32]
