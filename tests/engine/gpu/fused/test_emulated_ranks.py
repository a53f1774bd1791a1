"""Decode steps of two ranks, whose sums over ranks are kernels with peer buffers."""

import threading
from pathlib import Path

import pytest
import torch

from tests.support.emulated.kernel_bench import KernelBench
from tests.support.emulated.kernels import emulated_gpu
from tests.support.emulated.ranks import EmulatedRanks, peer_buffers, rank_kernels
from tests.support.reference import make_reference
from tests.support.thread_communicator import ThreadCommunicator, run_ranks

VOCAB_SIZE = 104  # rows of the logits of a rank are multiples of 16 bytes
MODELS = {"llama": {}, "gemma2": {}, "cohere": {"use_qk_norm": False}, "mixtral": {}}


@pytest.mark.parametrize("model_type", MODELS)
def test_steps_equal_transformers(model_type: str, tmp_path: Path) -> None:
    model = make_reference(model_type, tmp_path, vocab_size=VOCAB_SIZE, **MODELS[model_type])
    buffers = peer_buffers(2, model.config.hidden_size, VOCAB_SIZE)
    arrived = threading.Barrier(2, timeout=60)

    @torch.inference_mode()
    def run(rank: int, threads: ThreadCommunicator) -> list[str]:
        gpu = emulated_gpu(rank_kernels(arrived))
        ranks = EmulatedRanks(threads, buffers[rank])
        bench = KernelBench(model, tmp_path, gpu, ranks)
        try:
            bench.forward(0, 18)
            others = ranks.num_others
            bench.check_fused_steps()
        except BaseException:
            arrived.abort()  # wakes the rank that waits for this one
            raise
        assert ranks.num_others == 2 * others  # those of the prompt in `check_fused_steps`
        return bench.launched

    first, second = run_ranks(2, run)
    assert first == second
    steps = first.count("embed")
    layers = model.config.num_hidden_layers
    branches = 1 if model_type == "cohere" else 2  # those of a layer are summed before
    assert first.count("all_reduce") == steps * (1 + branches * layers)
    assert first.count("all_gather") == steps
