"""Requests with a common prompt: it is computed once, and each answer is the one it gets alone."""

import random
from pathlib import Path

import pytest
import torch

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import Tokens
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from tests.support import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny.make("llama", folder)
    return folder


def engine_of(folder: Path, **options: object) -> Engine:
    settings = {"device": "cpu", "dtype": "float32", "block_size": tiny.BLOCK_SIZE, **options}
    return build_engine(folder, EngineConfig(**settings))  # type: ignore[arg-type]


def run(engine: Engine, ids: dict[int, list[int]]) -> None:
    """Compute one step and collect the tokens of each request."""
    for request, event in engine.step():
        if isinstance(event, Tokens):
            ids[request] += event.ids
    engine.scheduler.check_integrity()


def alone(folder: Path, prompt: list[int], params: SamplingParams) -> list[int]:
    engine, ids = engine_of(folder), {0: list[int]()}
    engine.add(0, prompt, params)
    while engine.has_work:
        run(engine, ids)
    return ids[0]


@pytest.mark.parametrize("chunk_tokens", [None, 8])
def test_samples_share_one_prefill(folder: Path, chunk_tokens: int | None) -> None:
    engine = engine_of(folder, chunk_tokens=chunk_tokens)
    prompt = torch.randint(3, tiny.VOCAB_SIZE, (3 * tiny.BLOCK_SIZE + 5,)).tolist()
    samples = [SamplingParams(temperature=1.5, max_tokens=6, seed=seed) for seed in range(4)]
    ids: dict[int, list[int]] = {i: [] for i in range(4)}
    for i, params in enumerate(samples):
        engine.add(i, prompt, params)
    while engine.has_work:
        run(engine, ids)
    num_decoded = sum(len(tokens) - 1 for tokens in ids.values())
    assert engine.stats()["computed_tokens"] == len(prompt) + num_decoded
    assert [ids[i] for i in range(4)] == [alone(folder, prompt, params) for params in samples]


@pytest.mark.parametrize("seed", range(6))
def test_random_requests_with_common_beginnings(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    # Few blocks, so that sequences are preempted and cached blocks evicted.
    engine = engine_of(folder, ctx_size_tokens=96, chunk_tokens=rng.choice([5, 16, 64]))
    base = [rng.randrange(3, tiny.VOCAB_SIZE) for _ in range(60)]
    requests: dict[int, tuple[list[int], SamplingParams]] = {}
    ids: dict[int, list[int]] = {}
    canceled: set[int] = set()
    while len(requests) < 10 or engine.has_work:
        if len(requests) < 10 and rng.random() < 0.5:
            i = len(requests)
            prompt = base[: rng.randrange(1, 60)] + [
                rng.randrange(3, tiny.VOCAB_SIZE)
            ] * rng.randrange(3)
            params = SamplingParams(temperature=1.0, max_tokens=rng.randrange(1, 20), seed=i)
            requests[i], ids[i] = (prompt, params), []
            engine.add(i, prompt, params)
        if requests and rng.random() < 0.05:
            victim = rng.choice(list(requests))
            canceled.add(victim)
            engine.cancel(victim)
        run(engine, ids)
    for i, (prompt, params) in requests.items():
        expected = alone(folder, prompt, params)
        assert ids[i] == (expected[: len(ids[i])] if i in canceled else expected)
