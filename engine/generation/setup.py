"""What is decided before the weights of an engine are loaded: device, kernels, shard, dtype."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.comm.communicator import Communicator, RankPlacement
from swiftchat.engine.comm.pipeline import Pipeline
from swiftchat.engine.cpu.backend import NativeKernels
from swiftchat.engine.cpu.threads import default_threads
from swiftchat.engine.decode.graph_runner import GRAPH_SIZES
from swiftchat.engine.device.device import available_bytes, find_device, find_kernels
from swiftchat.engine.generation.prefill_graphs import graph_sizes
from swiftchat.engine.linear.factory import KernelWeights, TorchWeights, WeightFactory
from swiftchat.engine.linear.plain_gpu import LinearKernels
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.model.memory import (
    CachePlan,
    native_workspace_bytes,
    plain_weight_bytes,
    workspace_bytes,
)
from swiftchat.weights.model.checkpoint import Checkpoint
from swiftchat.weights.model.directory import Model
from swiftchat.weights.model.dummy import dummy_config, parse_dummy_name
from swiftchat.weights.parallel.tensor_parallel import Shard, shard_of

# Default numbers of tokens of one prefill step; the second one with kernels on a GPU. Every step
# dequantizes packed weights, so larger ones take less time, but their activations more memory.
_CHUNK_TOKENS = 512
_CHUNK_TOKENS_ON_GPU = 4096
_LARGE_CHUNK_TOKENS = 8192
_LARGE_CHUNK_FRACTION = 0.1  # for their activations, of the memory that the weights leave
# The number of cores, or OMP_NUM_THREADS. Read here because engines change it.
_TORCH_THREADS = torch.get_num_threads()


@dataclass(frozen=True)
class EngineSetup:
    """Everything that is decided before weights are loaded.

    `checkpoint` is None for a dummy model, whose quantization scheme is `dummy_scheme`. `kernels`
    are those of the GPU or the CPU; a text says why torch's operators compute.
    """

    config: EngineConfig
    device: torch.device
    kernels: LinearKernels | NativeKernels | str
    shard: Shard
    checkpoint: Checkpoint | None
    dummy_scheme: str | None
    dtype: torch.dtype
    available_bytes: int
    num_threads: int
    chunk_tokens: int

    @property
    def is_quantized(self) -> bool:
        if self.checkpoint is None:
            return self.dummy_scheme is not None
        return self.checkpoint.is_quantized

    @property
    def gpu(self) -> Gpu | None:
        return self.kernels.gpu if isinstance(self.kernels, LinearKernels) else None

    @property
    def factory(self) -> WeightFactory:
        if isinstance(self.kernels, NativeKernels):
            return self.kernels.factory
        if isinstance(self.kernels, LinearKernels):
            return KernelWeights(self.kernels)
        return TorchWeights()

    @property
    def workspace_bytes(self) -> int:
        """An upper estimate of the activations of a forward pass by kernels; 0 for torch's."""
        config, num_seqs = self.shard.local_config, self.config.max_num_seqs
        if isinstance(self.kernels, LinearKernels):
            # Captured chunks have activations of their own.
            tokens = self.chunk_tokens + graph_sizes(config)[-1]
            num_rows = min(num_seqs, GRAPH_SIZES[-1])
            return workspace_bytes(config, tokens, self.dtype, num_rows)
        if isinstance(self.kernels, NativeKernels):
            return native_workspace_bytes(config, self.chunk_tokens + num_seqs, num_seqs)
        return 0

    def new_cache(self, plan: CachePlan, *, heads_first: bool) -> KVCache:
        return KVCache(
            self.shard.local_config,
            plan.num_blocks,
            self.config.block_size,
            self.dtype,
            self.device,
            heads_first=heads_first,
            kv_dtype=self.config.kv_dtype,
            num_states=plan.num_states,
        )


def set_up(
    path: Path, config: EngineConfig, cubins: Path | None, ranks: Communicator, stages: Pipeline
) -> EngineSetup:
    """Choose device, dtype, kernels and this rank's shard for the model at `path`.

    Raises as `Model.open`, `find_device` and `NativeKernels.open` do.
    """
    device = _set_up_device(config, ranks.placement)
    model = None if config.dummy else Model.open(path)
    model_config = model.config if model else dummy_config(config.dummy or "")
    shard = shard_of(model_config, ranks.size, ranks.rank, stages.stage, stages.size)
    checkpoint = model.checkpoint(shard) if model else None
    dtype: torch.dtype = getattr(torch, config.dtype or shard.local_config.dtype)
    kernels: LinearKernels | NativeKernels | str
    if device.type == "cpu":
        kernels = _cpu_kernels(config)
    else:
        gpu = find_kernels(device, config, shard.local_config, dtype, cubins)
        hidden_size = shard.local_config.hidden_size
        kernels = gpu if isinstance(gpu, str) else LinearKernels(gpu, hidden_size)
    is_on_gpu = isinstance(kernels, LinearKernels)
    default_tokens = _CHUNK_TOKENS_ON_GPU if is_on_gpu else _CHUNK_TOKENS
    return EngineSetup(
        config=config,
        device=device,
        kernels=kernels,
        shard=shard,
        checkpoint=checkpoint,
        dummy_scheme=None if model else parse_dummy_name(config.dummy or "")[1],
        dtype=dtype,
        available_bytes=available_bytes(device, ranks.placement.num_local_ranks),
        num_threads=torch.get_num_threads(),
        chunk_tokens=config.chunk_tokens or default_tokens,
    )


def with_large_chunks(
    setup: EngineSetup, weights_bytes: int | None, ranks: Communicator
) -> EngineSetup:
    """Return the setup with larger prefill steps by default, if all ranks have the memory for them.

    `weights_bytes` is the size of quantized weights; None for weights that all have `setup.dtype`.
    """
    # Stages compute steps at the same time; with larger ones more stages would wait.
    if setup.config.chunk_tokens is not None or setup.gpu is None or setup.shard.num_stages > 1:
        return setup
    large = replace(setup, chunk_tokens=_LARGE_CHUNK_TOKENS)
    if weights_bytes is None:
        weights_bytes = plain_weight_bytes(setup.shard, setup.dtype)
    left_bytes = setup.available_bytes - weights_bytes
    fits = large.workspace_bytes <= _LARGE_CHUNK_FRACTION * left_bytes
    return large if ranks.min_across_ranks(int(fits)) else setup


def _cpu_kernels(config: EngineConfig) -> NativeKernels | str:
    if not config.kernels:
        return "switched off"
    return NativeKernels.open(os.environ, torch.get_num_threads())


def _set_up_device(config: EngineConfig, placement: RankPlacement) -> torch.device:
    """Return this rank's device; divide the CPU threads among the ranks of the machine."""
    device = find_device(config.device, placement.local_rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # for streams, events and pinned memory
    default = min(default_threads(), _TORCH_THREADS) // placement.num_local_ranks
    torch.set_num_threads(config.num_threads or max(1, default))
    return device
