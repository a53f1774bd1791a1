"""Tensor-parallel ranks give the ids and logits of a single rank in fp32.

Tolerance 1e-5 relative to the largest logit: the same products are summed in another order.
"""

import ipaddress
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import torch

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.comm.communicator import GlooCommunicator
from swiftchat.engine.schedule.sequence import TokenSequence
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.model.directory import Model
from swiftchat.weights.parallel.tensor_parallel import shard_of, tp_choices
from tests.support import tiny
from tests.support.thread_communicator import (
    ThreadCommunicator,
    frequent_thread_switches,
    run_ranks,
)

NUM_PROMPT = 9
# Beyond the windows of all architectures, and several blocks.
NUM_NEW = 16
EIGHT_HEADS = {"num_attention_heads": 8, "n_head": 8, "hidden_size": 64, "n_embd": 64}
# Architectures with different layouts of heads, rows and columns in the checkpoint.
TP4_ARCHITECTURES = (
    "llama-tied",
    "llama-biases",
    "phi3",
    "olmo2",
    "qwen3",
    "glm4",
    "gemma",
    "gpt2",
    "gpt-j",
    "gpt-neox",
    "opt-350m",
    "bloom",
    "falcon-7b",
    "falcon-40b",
    "mixtral",
)


@torch.inference_mode()
def greedy(bench: tiny.Bench, num_new: int = NUM_NEW) -> tuple[list[int], torch.Tensor]:
    """Generate greedily after a prompt; return the ids and their logits."""
    sequence = TokenSequence(0, tiny.random_ids(NUM_PROMPT, seed=7), SamplingParams())
    bench.scheduler.add(sequence)
    rows = []
    for _ in range(num_new):
        rows.append(bench.step()[0])
        sequence.tokens.append(int(rows[-1].argmax()))
    bench.scheduler.remove(sequence)
    return sequence.tokens[NUM_PROMPT:], torch.stack(rows)


def assert_ranks_equal_one(
    folder: Path,
    tp: int,
    rank_files: Path | None = None,
    num_new: int = NUM_NEW,
    native: bool = False,
) -> list[tiny.Bench]:
    """Compare ranks, with weights for the native kernels if `native`, to a decoder of torch."""
    ids, logits = greedy(tiny.Bench(folder), num_new)
    config = Model.open(folder).config

    def run(rank: int, ranks: ThreadCommunicator) -> tuple[tiny.Bench, list[int], torch.Tensor]:
        shard = shard_of(config, tp, rank)
        bench = tiny.Bench(rank_files or folder, shard=shard, ranks=ranks, native=native)
        return bench, *greedy(bench, num_new)

    benches = []
    for bench, rank_ids, rank_logits in run_ranks(tp, run):
        assert rank_ids == ids
        error = (rank_logits - logits).abs().max() / logits.abs().max()
        assert error <= 1e-5, error
        benches.append(bench)
    return benches


# Beside those of four ranks: each mechanism, queries, keys and values in groups, norms of single
# heads, a router with groups, and two norms before parallel branches.
TP2_ARCHITECTURES = (*tiny.MECHANISMS, "internlm2", "stablelm-2-12b", "ling", "falcon-11b")


@pytest.mark.parametrize("name", TP2_ARCHITECTURES)
def test_two_ranks_equal_one(name: str, tmp_path: Path) -> None:
    """Three ranks for architectures with three heads."""
    tiny.make(name, tmp_path)
    assert_ranks_equal_one(tmp_path, tp_choices(Model.open(tmp_path).config)[1])


@pytest.mark.parametrize("name", TP4_ARCHITECTURES)
def test_four_ranks_with_shared_kv_heads_equal_one(name: str, tmp_path: Path) -> None:
    """With grouped-query attention, four or two ranks share a KV head."""
    tiny.make(name, tmp_path, **EIGHT_HEADS)
    assert_ranks_equal_one(tmp_path, 4)


@pytest.mark.parametrize("name", ["gpt2", "falcon-40b"])
def test_ranks_loading_rank_files_equal_one(name: str, tmp_path: Path) -> None:
    tiny.make(name, tmp_path / "whole", **EIGHT_HEADS)
    convert(tmp_path / "whole", tmp_path / "rank_files", tp=4)
    assert_ranks_equal_one(tmp_path / "whole", 4, rank_files=tmp_path / "rank_files")


def _non_loopback_listeners() -> list[str]:
    """Return the addresses outside loopback that this process listens on."""
    connections = psutil.Process().net_connections("inet")
    hosts = [c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN]
    assert hosts
    return [host for host in hosts if not ipaddress.ip_address(host).is_loopback]


def test_two_ranks_over_tcp_equal_one(tmp_path: Path) -> None:
    """With norms over all heads, a shared KV head, and vocabulary shards of different size."""
    tiny.make("olmo2", tmp_path, num_key_value_heads=1)
    ids, logits = greedy(tiny.Bench(tmp_path))
    store, config = torch.distributed.HashStore(), Model.open(tmp_path).config

    def run(rank: int) -> tuple[list[int], torch.Tensor]:
        ranks = GlooCommunicator(store, rank, 2)
        found = greedy(tiny.Bench(tmp_path, shard=shard_of(config, 2, rank), ranks=ranks))
        assert _non_loopback_listeners() == []
        return found

    with frequent_thread_switches(), ThreadPoolExecutor(2) as pool:
        torch.set_num_threads(1)
        found = list(pool.map(run, range(2)))
    for rank_ids, rank_logits in found:
        assert rank_ids == ids
        assert (rank_logits - logits).abs().max() <= 1e-5 * logits.abs().max()
    assert torch.equal(found[0][1], found[1][1])  # so that ranks sample the same tokens
