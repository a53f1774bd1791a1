"""Pipeline stages generate the ids of a single stage in fp32, and report faults."""

import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import Tokens
from swiftchat.engine.comm.pipeline import GlooPipeline
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.ranks.auto_tp import require_gpus, resolve_tp
from swiftchat.errors import BadModelFile, DeviceError, UsageError
from swiftchat.weights.convert.convert import convert
from tests.engine.ranks.test_spmd import (
    LONG_PROMPT,
    assert_ranks_lost,
    mock_gpus,
    wait_until_decoding,
    wait_until_prefilling,
)
from tests.support import tiny
from tests.support.thread_communicator import frequent_thread_switches
from tests.support.worker_processes import (
    ENDLESS,
    GREEDY,
    WIDE,
    all_ranks,
    assert_equals_single_rank,
    collect,
)

TWO = EngineConfig(
    device="cpu", dtype="float32", num_threads=1, pp=2, block_size=tiny.BLOCK_SIZE, chunk_tokens=16
)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.9, max_tokens=6, seed=3, logprobs=2)
PROMPTS = {i: tiny.random_ids(1 + 13 * i, seed=i) for i in range(3)}

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="several ranks need Linux")


def generate_all(engine: Engine) -> list[object]:
    """Return greedy ids, sampled ids and logprobs."""
    greedy, _ = tiny.run(engine, PROMPTS, replace(SAMPLED, temperature=0))
    sampled, _ = tiny.run(engine, PROMPTS, SAMPLED)
    logprobs = tiny.logprobs(engine, PROMPTS[1], SAMPLED)[1]
    values = [[each.logprob, *(value for _, value in each.top)] for each in logprobs]
    return [greedy, sampled, [value for each in values for value in each]]


@tiny.each_backend
@pytest.mark.parametrize(
    ("name", "num_stages"),
    [
        ("gemma2", 3),  # tied: first and last stage have the embedding; alternating windows
        ("gpt2", 3),  # learned positions
        ("opt-350m", 3),  # norms after the branches, narrower embeddings
        ("smollm3", 2),  # no RoPE in the fourth layer
        ("chatglm-6b", 3),  # bidirectional prompt, scaled residual stream
    ],
)
def test_stages_equal_one_stage(name: str, num_stages: int, native: bool, tmp_path: Path) -> None:
    tiny.make(name, tmp_path)
    store = torch.distributed.HashStore()

    def run_stage(stage: int) -> list[object]:
        stages = GlooPipeline(store, stage, num_stages, 60)
        config = replace(TWO, pp=num_stages, cache_tokens=256, kernels=native)
        return generate_all(build_engine(tmp_path, config, stages=stages))

    with frequent_thread_switches(), ThreadPoolExecutor(num_stages) as pool:
        found = list(pool.map(run_stage, range(num_stages)))
    # By torch's operators with as many threads as the stages, the order of sums is the same, too.
    config = replace(TWO, pp=1, cache_tokens=256, kernels=native)
    expected = generate_all(build_engine(tmp_path, config))
    for *ids, logprobs in found:
        assert ids == expected[:2]
        assert logprobs == (pytest.approx(expected[2], abs=1e-4) if native else expected[2])


def test_a_stage_prefills_the_next_chunk_while_the_next_stage_computes(tmp_path: Path) -> None:
    tiny.make("llama", tmp_path)
    store = torch.distributed.HashStore()
    next_chunk_planned = threading.Event()

    def run_stage(stage: int) -> list[int]:
        stages = GlooPipeline(store, stage, 2, 60)
        engine = build_engine(tmp_path, replace(TWO, cache_tokens=256), stages=stages)
        plan, receive, num_plans = engine.decoder.ops.plan, stages.receive, 0

        def planned(*batch: Any) -> Any:
            nonlocal num_plans
            num_plans += 1
            if stage == 0 and num_plans == 2:
                next_chunk_planned.set()
            return plan(*batch)

        def received(*shape: int) -> torch.Tensor:
            x = receive(*shape)
            assert next_chunk_planned.wait(60)
            return x

        engine.decoder.ops.plan, stages.receive = planned, received
        return tiny.run(engine, {1: LONG_PROMPT}, GREEDY)[0][1]

    with frequent_thread_switches(), ThreadPoolExecutor(2) as pool:
        first, last = pool.map(run_stage, range(2))
    assert first == last == tiny.run(tiny.engine(tmp_path), {1: LONG_PROMPT}, GREEDY)[0][1]


def test_non_finite_logits_fail_on_all_stages(tmp_path: Path) -> None:
    tiny.make("llama", tmp_path)
    store = torch.distributed.HashStore()

    def run_stage(stage: int) -> object:
        engine = build_engine(tmp_path, TWO, stages=GlooPipeline(store, stage, 2, 60))
        if stage == 1:
            tiny.plain_tensor(engine.decoder.weights.lm_head).fill_(torch.nan)
        return tiny.run(engine, {1: [5, 6, 7]}, GREEDY)[1][1]

    with frequent_thread_switches(), ThreadPoolExecutor(2) as pool:
        for end in pool.map(run_stage, range(2)):
            assert isinstance(end, BadModelFile) and "not finite" in str(end)


@needs_linux
def test_two_stages_as_processes(tmp_path: Path) -> None:
    """Single and concurrent generations, prefix cache, and canceled generations."""
    tiny.make("llama-biases", tmp_path, num_hidden_layers=4)
    prompt = tiny.random_ids(40, seed=3)
    with EngineClient(TWO, tmp_path) as client:
        info = client.wait_ready()
        assert (info.tp, info.pp) == (1, 2)
        alone = tiny.engine(tmp_path)
        assert info.weights_bytes == alone.info.weights_bytes
        assert info.table_bytes == alone.info.table_bytes == 97 * 48 * 4
        assert info.cache_bytes // info.cache_tokens == (
            alone.info.cache_bytes // alone.info.cache_tokens
        )
        assert_equals_single_rank(client, tmp_path, 10)
        ids, _ = collect(client.generate(prompt, GREEDY))
        longer = [*prompt, *ids, 5, 6]
        again, end = collect(client.generate(longer, GREEDY))
        assert end.cached_tokens == len(longer) - 3
        assert tiny.run(alone, {1: longer}, GREEDY)[0][1] == again
        canceled = client.generate([9, 9], ENDLESS)
        while not isinstance(next(iter(canceled)), Tokens):
            pass
        prefilling = client.generate(LONG_PROMPT, ENDLESS)
        canceled.cancel()
        prefilling.cancel()
        assert collect(prefilling)[1].reason == "interrupt"
        assert collect(client.generate(longer, GREEDY))[0] == again
        assert client.stats()["used_blocks"] == 0


@needs_linux
def test_two_ranks_on_each_of_two_stages_and_a_killed_rank(tmp_path: Path) -> None:
    """Load rank files for two ranks; rank 3 is the second of the second stage."""
    tiny.make("gpt2", tmp_path / "whole", **WIDE)
    convert(tmp_path / "whole", tmp_path / "rank_files", tp=2)
    with EngineClient(replace(TWO, tp=2), tmp_path / "rank_files") as client:
        pids = all_ranks(client, 4)
        assert_equals_single_rank(client, tmp_path / "whole", 10)
        wait_until_decoding(client)
        os.kill(pids[3], signal.SIGKILL)
        assert_ranks_lost(client, pids.values(), r"rank 3 ended: signal 9 \(SIGKILL\)")


@needs_linux
def test_a_stage_killed_during_chunked_prefill(tmp_path: Path) -> None:
    tiny.make("mixtral", tmp_path)
    with EngineClient(replace(TWO, pp=3), tmp_path) as client:
        pids = all_ranks(client, 3)
        assert_equals_single_rank(client, tmp_path, 10)
        wait_until_prefilling(client)
        os.kill(pids[1], signal.SIGKILL)
        assert_ranks_lost(client, pids.values(), r"rank 1 ended: signal 9 \(SIGKILL\)")


def test_invalid_number_of_stages_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.make("llama", tmp_path)
    with pytest.raises(UsageError, match="--pp 4 is more than this model's 3 layers"):
        resolve_tp(replace(TWO, pp=4), tmp_path)
    with pytest.raises(UsageError, match="pp must be at least 1, not 0"):
        replace(TWO, pp=0)
    mock_gpus(monkeypatch, [10**10] * 3)
    with pytest.raises(DeviceError, match="--tp 2 --pp 2 needs 4 GPUs from cuda:0 on: 3 found"):
        require_gpus(EngineConfig(tp=2, pp=2))
    with pytest.raises(DeviceError, match="--tp 1 --pp 4 needs 4 GPUs from cuda:0 on: 3 found"):
        resolve_tp(EngineConfig(dummy="llama-3.1-8b", tp="auto", pp=4), Path())


@pytest.mark.parametrize(("free_gb", "tp"), [([12] * 8, 1), ([7] * 8, 2), ([4.2] * 8, 4)])
def test_auto_tp_with_stages(
    free_gb: list[float], tp: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The larger of two stages of Llama 3.1 8B has 9.1 GB of weights."""
    mock_gpus(monkeypatch, [int(gb * 1e9) for gb in free_gb])
    assert resolve_tp(EngineConfig(dummy="llama-3.1-8b", tp="auto", pp=2), Path()) == tp
