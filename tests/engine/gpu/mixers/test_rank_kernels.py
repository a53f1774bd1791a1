"""The models of `test_mixer_ranks_gpu` are covered by the kernels on every rank."""

from pathlib import Path

import pytest
import torch

from swiftchat.engine.gpu.coverage import kernels_cover
from swiftchat.engine.gpu.linear.factory import KernelWeights
from swiftchat.engine.gpu.linear.plain import LinearKernels
from swiftchat.engine.gpu.ops import CudaOps
from swiftchat.engine.load.loader import load_weights
from swiftchat.weights.model.directory import Model
from swiftchat.weights.parallel.tensor_parallel import shard_of
from tests.support import reference
from tests.support.emulated.kernels import emulated_gpu
from tests.support.mixer_models import NOT_CAPTURED
from tests.support.rank_models import RANK_MODELS


@pytest.mark.parametrize("name", RANK_MODELS)
def test_experts_of_a_rank_are_computed_without_the_host(name: str, tmp_path: Path) -> None:
    """As captured steps need them."""
    model_type, changes = RANK_MODELS[name]
    reference.copy_reference(model_type, tmp_path, **changes)
    model, cpu = Model.open(tmp_path), torch.device("cpu")
    for rank in range(2):
        shard = shard_of(model.config, 2, rank)
        assert kernels_cover(shard.local_config, torch.float32)
        kernels = LinearKernels(emulated_gpu(), model.config.hidden_size)
        weights = load_weights(
            *(model.config, model.checkpoint(shard), torch.float32, cpu, lambda *done: None, shard),
            factory=KernelWeights(kernels),
        )
        ops = CudaOps(kernels, shard, 64, 4)
        assert ops.computes_experts(weights.layers) == (name not in NOT_CAPTURED)
