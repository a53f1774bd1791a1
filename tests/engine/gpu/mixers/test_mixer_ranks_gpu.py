"""Ranks on GPUs that divide mixers with a state: the ids of one rank on the CPU, in fp32.

Two threads with one GPU compute every step by launching kernels; two processes with a GPU each
replay captured steps.
"""

from pathlib import Path

import pytest

from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.comm.communicator import RankPlacement
from swiftchat.engine.generation import build
from swiftchat.engine.gpu.ops import CudaOps
from swiftchat.engine.gpu.steps import back_end
from swiftchat.engine.gpu.steps.graphs import Graphs
from tests.support import reference, tiny
from tests.support.mixer_models import NOT_CAPTURED
from tests.support.rank_models import RANK_MODELS
from tests.support.thread_communicator import ThreadCommunicator, run_ranks
from tests.support.worker_processes import collect, generate_concurrently

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]
GREEDY = SamplingParams(temperature=0, max_tokens=24)
PROMPT = tiny.random_ids(22, seed=1)
PROMPTS = [tiny.random_ids(1 + 13 * i, seed=i) for i in range(4)]


@pytest.fixture(scope="module", params=RANK_MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model_type, changes = RANK_MODELS[request.param]
    path: Path = tmp_path_factory.mktemp(request.param)
    reference.copy_reference(model_type, path, **changes)
    return path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kernel cache shared by all workers of this file."""
    return tmp_path_factory.mktemp("cache")


def turns(engine: build.Engine) -> list[object]:
    """Return the ids of a batch, and ids and cached tokens of turns of one conversation."""
    found: list[object] = [tiny.run(engine, dict(enumerate(PROMPTS)), GREEDY)[0]]
    answer = tiny.run(engine, {1: PROMPT}, GREEDY)[0][1]
    second = PROMPT + answer + tiny.random_ids(9, seed=8)
    for prompt in (second, second, PROMPT + answer + tiny.random_ids(5, seed=9)):
        ids, ends = tiny.run(engine, {1: prompt}, GREEDY)
        found.append((ids, ends[1].cached_tokens))
    return found


def test_two_ranks_with_one_gpu_equal_the_cpu(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batched and alone, with prompts in chunks, prefix reuse and snapshots."""
    expected = turns(tiny.engine(folder, chunk_tokens=16))
    monkeypatch.setattr(back_end, "build_graphs", lambda *args: Graphs())
    config = EngineConfig(
        device="cuda", dtype="float32", block_size=tiny.BLOCK_SIZE, chunk_tokens=16, tp=2
    )

    def run(rank: int, ranks: ThreadCommunicator) -> list[object]:
        ranks.placement = RankPlacement(0, 2)
        engine = build.build_engine(folder, config, cubins=cache, ranks=ranks)
        assert isinstance(engine.decoder.ops, CudaOps)
        for tensor in engine.cache.states.tensors:  # unwritten slots must never be read
            tensor.fill_(float("nan"))
        return turns(engine)

    assert run_ranks(2, run) == [expected] * 2


@pytest.mark.gpus(2)
def test_two_gpus_equal_the_cpu(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode steps are captured, with the all-reduces inside of mixers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    expected, _ = tiny.run(tiny.engine(folder), dict(enumerate(PROMPTS)), GREEDY)
    config = EngineConfig(
        device="cuda", dtype="float32", block_size=tiny.BLOCK_SIZE, chunk_tokens=16, tp=2
    )
    with EngineClient(config, folder) as client:
        assert generate_concurrently(client, PROMPTS, GREEDY) == list(expected.values())
        for i, prompt in enumerate(PROMPTS):
            assert collect(client.generate(prompt, GREEDY))[0] == expected[i]
        if not folder.name.startswith(NOT_CAPTURED):
            assert client.stats()["graph_steps"] > 4 * 20
