"""What is decided before the weights of an engine are loaded: device, kernels, shard, dtype."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from swiftchat.engine.api.expert_placement import (
    PLACED_CONTEXT_TOKENS,
    ExpertPlacement,
    ExpertSizes,
    Room,
    place_experts,
)
from swiftchat.engine.api.memory_estimate import (
    cpu_tensor_bytes,
    gpu_tensor_bytes,
    packed_schemes,
    plain_weight_bytes,
)
from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.comm.communicator import Communicator, RankPlacement
from swiftchat.engine.comm.pipeline import Pipeline
from swiftchat.engine.cpu.back_end import NativeBackEnd
from swiftchat.engine.cpu.threads import default_threads
from swiftchat.engine.device.device import available_bytes, find_device
from swiftchat.engine.generation.back_end import BackEnd
from swiftchat.engine.gpu.steps.back_end import GpuBackEnd
from swiftchat.engine.hybrid.back_end import HybridBackEnd, not_placed
from swiftchat.engine.linear.factory import TorchWeights, WeightFactory
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.model.memory import MIN_CONTEXT_TOKENS, CachePlan, plan_shard_cache
from swiftchat.engine.reference.back_end import TorchBackEnd
from swiftchat.errors import DeviceError, OutOfMemory
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.model.checkpoint import Checkpoint
from swiftchat.weights.model.directory import Model
from swiftchat.weights.model.dummy import dummy_config, dummy_schemes, parse_dummy_name
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
    prefill step has at most `chunk_tokens`. `placement` says which experts are in main memory;
    None: all weights are on the device.
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
    placement: ExpertPlacement | None = None

    @property
    def is_quantized(self) -> bool:
        if self.checkpoint is None:
            return self.dummy_scheme is not None
        return self.checkpoint.is_quantized

    @property
    def host_layers(self) -> tuple[int, ...]:
        """The layers whose experts are in main memory beside a GPU."""
        return () if self.placement is None else self.placement.host_layers

    @property
    def factory(self) -> WeightFactory:
        return self.back_end.factory

    @property
    def workspace_bytes(self) -> int:
        """An upper estimate of the activations of a forward pass; 0 for torch's."""
        config, max_num_seqs = self.shard.local_config, self.config.max_num_seqs
        return self.back_end.workspace_bytes(config, self.dtype, self.chunk_tokens, max_num_seqs)

    def plan_cache(
        self, weights_bytes: int | None, available_bytes: int, head_bytes_per_token: int
    ) -> CachePlan:
        """Plan the KV cache of this rank; the arguments are those of `plan_shard_cache`."""
        return plan_shard_cache(
            self.config,
            self.shard,
            self.dtype,
            self.workspace_bytes,
            available_bytes,
            weights_bytes,
            has_spares=self.back_end.has_spare_states,
            head_bytes_per_token=head_bytes_per_token,
        )

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
        available_bytes=_available_bytes(device, config, ranks.placement),
        num_threads=torch.get_num_threads(),
        chunk_tokens=config.chunk_tokens or back_end.default_chunk_tokens,
    )


def with_placed_experts(setup: EngineSetup, head_bytes_per_token: int) -> EngineSetup:
    """Return the setup with experts in main memory, if a single GPU does not hold all of them.

    Raises as `place_experts` and `HybridBackEnd.of` do, and `DeviceError` without the kernels of
    both devices.
    """
    config, back_end = setup.config, setup.back_end
    num_host = None if config.cpu_experts == "auto" else config.cpu_experts
    if not isinstance(back_end, GpuBackEnd):
        if num_host and setup.device.type != "cpu":
            raise not_placed(back_end.description)
        return setup
    if (
        num_host == 0
        or not setup.shard.is_whole
        or (setup.shard.config.moe is None and not num_host)
    ):
        return setup
    room, sizes = _room(setup, head_bytes_per_token), _expert_sizes(setup)
    try:
        return _placed(setup, back_end, place_experts(sizes, room, num_host))
    except DeviceError as error:
        is_held = room.fits(sizes.weights_bytes, room.context_tokens[-1], room.gpu_bytes)
        if num_host is None and (is_held or not isinstance(error, OutOfMemory)):
            return setup  # with a short context; else the plan of the cache says what is missing
        raise


def _placed(setup: EngineSetup, gpu: GpuBackEnd, placement: ExpertPlacement) -> EngineSetup:
    if not placement.host_layers:
        return setup
    num_threads = setup.config.num_threads or max(1, setup.num_threads - 1)  # one launches steps
    host = NativeBackEnd.open(os.environ, num_threads)
    if isinstance(host, str):
        raise not_placed(host)
    hybrid = HybridBackEnd.of(gpu, host, setup.shard, placement.host_layers)
    return replace(setup, back_end=hybrid, placement=placement, num_threads=num_threads)


def _room(setup: EngineSetup, head_bytes_per_token: int) -> Room:
    """Return the free memory, and whether weights and a context fit the GPU."""
    config = setup.config

    def fits(weights_bytes: int, num_tokens: int, gpu_bytes: int) -> bool:
        wanted = replace(setup, config=replace(config, ctx_size_tokens=num_tokens))
        try:
            wanted.plan_cache(weights_bytes, gpu_bytes, head_bytes_per_token)
        except OutOfMemory:
            return False
        return True

    longest = setup.shard.config.max_context_tokens
    wanted, least = (
        config.ctx_size_tokens or min(longest, tokens)
        for tokens in (PLACED_CONTEXT_TOKENS, MIN_CONTEXT_TOKENS)
    )
    host_bytes = available_bytes(torch.device("cpu"))
    return Room(setup.available_bytes, host_bytes, (wanted, least), fits)


def _expert_sizes(setup: EngineSetup) -> ExpertSizes:
    """Return the sizes of the weights; those of quantized dummies in main memory are estimates."""
    shard, checkpoint, item_bytes = setup.shard, setup.checkpoint, setup.dtype.itemsize
    if checkpoint is None:
        schemes = dummy_schemes(shard.config, setup.dummy_scheme)
        return ExpertSizes.of(*[list(gpu_tensor_bytes(shard, schemes, item_bytes))] * 2)
    schemes = packed_schemes(checkpoint.quantized)
    return ExpertSizes.of(
        gpu_tensor_bytes(shard, schemes, item_bytes),
        cpu_tensor_bytes(shard, checkpoint.quantized, item_bytes),
    )


def with_large_chunks(
    setup: EngineSetup, weights_bytes: int | None, ranks: Communicator
) -> EngineSetup:
    """Return the setup with larger prefill steps by default, if all ranks have the memory for them.

    `weights_bytes` is the size of quantized weights; None for weights that all have `setup.dtype`.
    """
    # Stages compute steps at the same time; with larger ones more stages would wait.
    is_chosen, has_stages = setup.config.chunk_tokens is not None, setup.shard.num_stages > 1
    if is_chosen or has_stages or setup.back_end.gpu is None or setup.placement is not None:
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


def _available_bytes(device: torch.device, config: EngineConfig, placement: RankPlacement) -> int:
    free_bytes = available_bytes(device, placement.num_local_ranks)
    if device.type == "cpu" or config.gpu_memory_bytes is None:
        return free_bytes
    return min(free_bytes, config.gpu_memory_bytes)


def _set_up_device(config: EngineConfig, placement: RankPlacement) -> torch.device:
    """Return this rank's device; divide the CPU threads among the ranks of the machine."""
    device = find_device(config.device, placement.local_rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # for streams, events and pinned memory
    default = min(default_threads(), _TORCH_THREADS) // placement.num_local_ranks
    torch.set_num_threads(config.num_threads or max(1, default))
    return device
