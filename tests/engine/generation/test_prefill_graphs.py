"""Prefill chunks replayed from graphs against the same chunks computed without."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.generation.prefill_graphs import GRAPH_TOKENS
from tests.support import tiny

pytestmark = pytest.mark.gpu
MODELS = (*tiny.VARIANTS, "qwen3", "gemma2", "smollm3", "olmo2", "gpt2", "bloom", "falcon-40b")
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
    """Return a list that receives the number of tokens of every replayed chunk."""
    replayed: list[int] = []
    graphs = engine.prefill_graphs
    assert graphs is not None
    forward = graphs.forward

    def record(batch: object) -> Tensor | None:
        logits = forward(batch)  # type: ignore[arg-type]
        if logits is not None:
            replayed.append(len(batch.ids))  # type: ignore[attr-defined]
        return logits

    graphs.forward = record  # type: ignore[method-assign]
    return replayed


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
        expected_replays += [num_tokens, len(second) - cached]
    assert replayed == expected_replays


def test_logits_of_padded_chunks(folder: Path, cubins: Path) -> None:
    engine = prepared_engine(folder, cubins)
    graphs, forward, pairs = engine.prefill_graphs, engine.decoder.forward, []
    assert graphs is not None
    replay = graphs.forward

    def both(batch: object) -> Tensor | None:
        logits = replay(batch)  # type: ignore[arg-type]
        assert logits is not None
        pairs.append((logits.clone(), forward(batch, engine.cache)))  # type: ignore[arg-type]
        return logits

    graphs.forward = both  # type: ignore[assignment, method-assign]
    params = SamplingParams(temperature=0, max_tokens=1)
    for num_tokens in (3, 16, 31, 90, 200):
        tiny.run(engine, {1: tiny.random_ids(num_tokens, seed=num_tokens)}, params)
    assert len(pairs) == 5
    for found, expected in pairs:
        assert found.shape == expected.shape == (1, engine.vocab_size)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("scheme", ["int8", "int4", "fp8"])
def test_quantized_weights_and_half_precision(cubins: Path, scheme: str) -> None:
    """bf16 with tensor-core attention; the cache of the second prompt is the first's."""
    answers = []
    for use_graphs in (True, False):
        config = EngineConfig(device="cuda", dummy=f"smollm2-135m:{scheme}", ctx_size_tokens=1024)
        engine = build_engine(Path(), config, cubins=cubins)
        while use_graphs and engine.can_prepare:
            engine.prepare()
        prompt = tiny.random_ids(300, seed=1)
        params = SamplingParams(temperature=0, max_tokens=1, logprobs=5)
        answers.append([tiny.logprobs(engine, prompt[:n], params) for n in (40, 300)])
    for (_, found), (_, expected) in zip(*answers, strict=True):
        for one, other in zip(found, expected, strict=True):
            # Dequantized GEMMs of other row counts round bf16 sums elsewhere.
            assert one.logprob == pytest.approx(other.logprob, abs=0.1)


def test_chunks_that_are_not_replayed(tmp_path: Path, cubins: Path) -> None:
    """Several sequences in a step, chunks that do not reach the end, more than the largest graph"""
    tiny.make("llama", tmp_path)
    engine = prepared_engine(tmp_path, cubins, chunk_tokens=32)
    replayed = recorded(engine)
    on_cpu = tiny.engine(tmp_path)
    together = {i: tiny.random_ids(10, seed=i) for i in range(3)}
    assert tiny.run(engine, together, GREEDY)[0] == tiny.run(on_cpu, together, GREEDY)[0]
    assert replayed == []
    long = {5: tiny.random_ids(75, seed=9)}
    assert tiny.run(engine, long, GREEDY)[0] == tiny.run(on_cpu, long, GREEDY)[0]
    assert replayed == [75 - 2 * 32]


def test_no_memory_for_a_graph(tmp_path: Path, cubins: Path) -> None:
    """The sizes that were captured are used; others are computed without a graph."""
    tiny.make("llama", tmp_path)
    settings = {"device": "cuda", "dtype": "float32", "block_size": tiny.BLOCK_SIZE}
    engine = build_engine(tmp_path, EngineConfig(**settings), cubins=cubins)
    graphs = engine.prefill_graphs
    assert graphs is not None
    capture = graphs._capture

    def capture_small(size: int) -> torch.cuda.CUDAGraph:
        if size > GRAPH_TOKENS[1]:
            raise torch.OutOfMemoryError("no memory")
        return capture(size)

    graphs._capture = capture_small  # type: ignore[method-assign]
    replayed = recorded(engine)
    while engine.can_prepare:
        engine.prepare()
    on_cpu = tiny.engine(tmp_path)
    for num_tokens in (30, 60):
        prompt = {1: tiny.random_ids(num_tokens, seed=num_tokens)}
        assert tiny.run(engine, prompt, GREEDY)[0] == tiny.run(on_cpu, prompt, GREEDY)[0]
    assert replayed == [30]
