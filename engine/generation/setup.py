"""What is decided before the weights of an engine are loaded: device, kernels, shard, dtype."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from swiftchat.engine.api.memory_estimate import plain_weight_bytes
from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.comm.communicator import Communicator, RankPlacement
from swiftchat.engine.comm.pipeline import Pipeline
from swiftchat.engine.cpu.back_end import NativeBackEnd
from swiftchat.engine.cpu.threads import default_threads
from swiftchat.engine.device.device import available_bytes, find_device
from swiftchat.engine.generation.back_end import BackEnd
from swiftchat.engine.gpu.steps.back_end import GpuBackEnd
from swiftchat.engine.linear.factory import TorchWeights, WeightFactory
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.model.memory import CachePlan
from swiftchat.engine.reference.back_end import TorchBackEnd
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.model.checkpoint import Checkpoint
from swiftchat.weights.model.directory import Model
from swiftchat.weights.model.dummy import dummy_config, parse_dummy_name
from swiftchat.weights.parallel.tensor_parallel import Shard, shard_of

# Of a prefill step on a GPU with enough memory for its activations.
_LARGE_CHUNK_TOKENS = 8192
_LARGE_CHUNK_FRACTION = 0.1  # for their activations, of the memory that the weights leave
# The number of cores, or OMP_NUM_THREADS. Read here because engines change it.
_TORCH_THREADS = torch.get_num_threads()


@dataclass(frozen=True)
class EngineSetup:
    """Everything that is decided before weights are loaded.

    `checkpoint` is None for a dummy model, whose quantization scheme is `dummy_scheme`. A
    prefill step has at most `chunk_tokens`.
    """

    config: EngineConfig
    device: torch.device
    back_end: BackEnd
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
    def factory(self) -> WeightFactory:
        return self.back_end.factory

    @property
    def workspace_bytes(self) -> int:
        """An upper estimate of the activations of a forward pass; 0 for torch's."""
        config, max_num_seqs = self.shard.local_config, self.config.max_num_seqs
        return self.back_end.workspace_bytes(config, self.dtype, self.chunk_tokens, max_num_seqs)

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

    Raises as `Model.open`, `find_device` and `NativeBackEnd.open` do.
    """
    device = _set_up_device(config, ranks.placement)
    model = None if config.dummy else Model.open(path)
    model_config = model.config if model else dummy_config(config.dummy or "")
    shard = shard_of(model_config, ranks.size, ranks.rank, stages.stage, stages.size)
    checkpoint = model.checkpoint(shard) if model else None
    dtype: torch.dtype = getattr(torch, config.dtype or shard.local_config.dtype)
    back_end = _back_end(device, config, shard.local_config, dtype, cubins)
    return EngineSetup(
        config=config,
        device=device,
        back_end=back_end,
        shard=shard,
        checkpoint=checkpoint,
        dummy_scheme=None if model else parse_dummy_name(config.dummy or "")[1],
        dtype=dtype,
        available_bytes=available_bytes(device, ranks.placement.num_local_ranks),
        num_threads=torch.get_num_threads(),
        chunk_tokens=config.chunk_tokens or back_end.default_chunk_tokens,
    )


def with_large_chunks(
    setup: EngineSetup, weights_bytes: int | None, ranks: Communicator
) -> EngineSetup:
    """Return the setup with larger prefill steps by default, if all ranks have the memory for them.

    `weights_bytes` is the size of quantized weights; None for weights that all have `setup.dtype`.
    """
    # Stages compute steps at the same time; with larger ones more stages would wait.
    is_chosen, has_stages = setup.config.chunk_tokens is not None, setup.shard.num_stages > 1
    if is_chosen or has_stages or setup.back_end.gpu is None:
        return setup
    large = replace(setup, chunk_tokens=_LARGE_CHUNK_TOKENS)
    if weights_bytes is None:
        weights_bytes = plain_weight_bytes(setup.shard, setup.dtype.itemsize)
    left_bytes = setup.available_bytes - weights_bytes
    fits = large.workspace_bytes <= _LARGE_CHUNK_FRACTION * left_bytes
    return large if ranks.min_across_ranks(int(fits)) else setup


def _back_end(
    device: torch.device,
    config: EngineConfig,
    shape: ModelConfig,
    dtype: torch.dtype,
    cubins: Path | None,
) -> BackEnd:
    """Return the kernels of the device if they can run, else torch's operators with the reason."""
    opened: BackEnd | str = "switched off"
    if device.type != "cpu":
        opened = GpuBackEnd.open(device, config, shape, dtype, cubins)
    elif config.kernels:
        opened = NativeBackEnd.open(os.environ, torch.get_num_threads())
    if isinstance(opened, str):
        return TorchBackEnd(device, f"torch only: {opened}", TorchWeights())
    return opened


def _set_up_device(config: EngineConfig, placement: RankPlacement) -> torch.device:
    """Return this rank's device; divide the CPU threads among the ranks of the machine."""
    device = find_device(config.device, placement.local_rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # for streams, events and pinned memory
    default = min(default_threads(), _TORCH_THREADS) // placement.num_local_ranks
    torch.set_num_threads(config.num_threads or max(1, default))
    return device
