"""What is decided before the weights of an engine are loaded."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.comm.communicator import SingleRank
from swiftchat.engine.comm.pipeline import SingleStage
from swiftchat.engine.generation.setup import EngineSetup, set_up, with_large_chunks
from swiftchat.engine.gpu.linear.plain import LinearKernels
from swiftchat.engine.gpu.steps.back_end import GpuBackEnd
from swiftchat.engine.linear.factory import TorchWeights
from swiftchat.engine.model.memory import workspace_bytes
from swiftchat.engine.reference.back_end import TorchBackEnd
from swiftchat.errors import OutOfMemory
from tests.support import tiny
from tests.support.emulated.engine import engine_gpu

LARGE, SMALL = 8192, 4096
WEIGHTS = 10**9


class RankNextToASmallOne(SingleRank):
    def min_across_ranks(self, number: int) -> int:
        return min(number, 0)


@pytest.fixture
def setup(tmp_path: Path) -> EngineSetup:
    """The setup of a rank with kernels for a GPU, whose memory is nearly empty."""
    tiny.make("llama", tmp_path)
    found = set_up(tmp_path, EngineConfig(device="cpu"), None, SingleRank(), SingleStage())
    kernels = LinearKernels(engine_gpu(), found.shard.config.hidden_size)
    return replace(found, back_end=GpuBackEnd(kernels), chunk_tokens=SMALL, available_bytes=10**12)


def test_chunks_are_large_if_the_weights_leave_much_memory(setup: EngineSetup) -> None:
    assert with_large_chunks(setup, WEIGHTS, SingleRank()).chunk_tokens == LARGE
    assert with_large_chunks(setup, None, SingleRank()).chunk_tokens == LARGE
    activations = workspace_bytes(setup.shard.config, LARGE, setup.dtype)
    little = replace(setup, available_bytes=WEIGHTS + 9 * activations)
    assert with_large_chunks(little, WEIGHTS, SingleRank()) == little


def test_all_ranks_have_chunks_of_the_same_size(setup: EngineSetup) -> None:
    assert with_large_chunks(setup, WEIGHTS, RankNextToASmallOne()) == setup


def test_the_size_that_the_user_chose_stays(setup: EngineSetup) -> None:
    chosen = replace(setup, config=replace(setup.config, chunk_tokens=SMALL))
    assert with_large_chunks(chosen, WEIGHTS, SingleRank()) == chosen


def test_stages_and_torch_operators_keep_small_chunks(setup: EngineSetup) -> None:
    stages = replace(setup, shard=replace(setup.shard, num_stages=2))
    assert with_large_chunks(stages, WEIGHTS, SingleRank()) == stages
    cpu = torch.device("cpu")
    back_end = TorchBackEnd(cpu, "torch only", TorchWeights())
    by_torch = replace(setup, back_end=back_end, chunk_tokens=512)
    assert with_large_chunks(by_torch, WEIGHTS, SingleRank()) == by_torch


@pytest.mark.fault(16)
def test_what_does_not_fit_is_an_error_before_weights_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.make("llama", tmp_path)
    monkeypatch.setattr("swiftchat.engine.generation.setup.available_bytes", lambda *_: 1_000_000)
    monkeypatch.delattr("swiftchat.engine.generation.build.load_weights")
    with pytest.raises(OutOfMemory, match=r"not enough memory: .* GB needed .*0\.00 GB free") as no:
        tiny.engine(tmp_path)
    assert (no.value.exit_code, no.value.hint) == (4, "use a smaller model")
