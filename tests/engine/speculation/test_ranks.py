"""Speculation on several ranks and stages: all of them verify the same tokens."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.comm.pipeline import GlooPipeline
from swiftchat.engine.generation.build import build_engine
from tests.support import tiny
from tests.support.speculation import use_oracle
from tests.support.thread_communicator import (
    ThreadCommunicator,
    frequent_thread_switches,
    run_ranks,
)

OFF = SamplingParams(temperature=0, max_tokens=24, speculate="off")
PROMPT = {1: tiny.random_ids(9, seed=4)}
CONFIG = EngineConfig(device="cpu", dtype="float32", block_size=tiny.BLOCK_SIZE)


@pytest.mark.parametrize("params", [OFF, replace(OFF, temperature=0.9, seed=5)])
def test_ranks_accept_the_same_tokens(params: SamplingParams, tmp_path: Path) -> None:
    """Greedy rows exchange only maxima, sampled ones all logits."""
    tiny.make("llama", tmp_path, num_hidden_layers=2)
    plain, _ = tiny.run(tiny.engine(tmp_path), PROMPT, params)

    def run(rank: int, ranks: ThreadCommunicator) -> tuple[list[int], int]:
        engine = use_oracle(build_engine(tmp_path, replace(CONFIG, tp=2), ranks=ranks), plain)
        ids, ends = tiny.run(engine, PROMPT, replace(params, speculate="auto"))
        return ids[1], ends[1].speculated.num_accepted

    first, second = run_ranks(2, run)
    assert first == second
    assert first[0] == plain[1] and first[1] > 5


def test_stages_accept_the_tokens_of_the_last_one(tmp_path: Path) -> None:
    tiny.make("llama", tmp_path, num_hidden_layers=2)
    plain, _ = tiny.run(tiny.engine(tmp_path), PROMPT, OFF)
    store = torch.distributed.HashStore()

    def run(stage: int) -> tuple[list[int], int]:
        config, stages = replace(CONFIG, pp=2), GlooPipeline(store, stage, 2, 60)
        engine = use_oracle(build_engine(tmp_path, config, stages=stages), plain)
        ids, ends = tiny.run(engine, PROMPT, replace(OFF, speculate="auto"))
        return ids[1], ends[1].speculated.num_accepted

    with frequent_thread_switches(), ThreadPoolExecutor(2) as pool:
        first, last = pool.map(run, range(2))
    assert first == last
    assert first[0] == plain[1] and first[1] > 5
