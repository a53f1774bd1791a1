"""The number of tensor-parallel ranks, decided before any rank is started."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from swiftchat.engine.api.memory_estimate import gpu_weight_bytes, packed_schemes, rank_counts
from swiftchat.engine.api.params import EngineConfig
from swiftchat.errors import DeviceError, OutOfMemory, UsageError
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.model.directory import Model
from swiftchat.weights.model.dummy import dummy_config, dummy_schemes, parse_dummy_name
from swiftchat.weights.parallel.tensor_parallel import shard_of, tp_choices
from swiftchat.weights.quantization.scheme import Scheme

if TYPE_CHECKING:
    import torch

_CONTEXT_TOKENS = 4096  # that must fit with `auto`, unless --ctx-size is given
_CHUNK_TOKENS = 4096  # the engine's default with CUDA kernels, which need the most memory


def resolve_tp(config: EngineConfig, path: Path) -> int:
    """Return the number of ranks of each stage, after checking that the model can be divided.

    Raises `UsageError` if it cannot. Only `auto` imports torch; it raises `OutOfMemory` if all
    GPUs together are too small.
    """
    if config.tp == config.pp == 1:
        return 1
    model = None if config.dummy else Model.open(path)
    shape = model.config if model else dummy_config(config.dummy or "")
    shard_of(shape, 1 if config.tp == "auto" else config.tp, 0, num_stages=config.pp)
    if config.tp != "auto":
        return config.tp
    dummy_scheme = parse_dummy_name(config.dummy or "")[1]
    schemes = (
        packed_schemes(model.quantized_tensors) if model else dummy_schemes(shape, dummy_scheme)
    )
    return _smallest_tp(config, shape, schemes if config.kernels else {})


def require_gpus(config: EngineConfig) -> None:
    """Raise `DeviceError` if there are fewer GPUs than ranks, `UsageError` if there is none.

    The device `cpu` can have any number of ranks, for tests.
    """
    import torch

    from swiftchat.engine.device.device import find_device

    first = find_device(config.device)
    assert config.tp != "auto"  # `resolve_tp` has replaced it
    needed, available = config.tp * config.pp, _num_gpus(first) if first.type == "cuda" else 0
    if first.type == "cpu" and needed > 1 and config.device == "auto":
        option = "--tp" if config.tp > 1 else "--pp"
        raise UsageError(
            f"{option} needs GPUs, and none was found on this machine",
            f"leave out {option}; swiftchat doctor checks the requirements for GPUs",
        )
    if first.type == "cuda" and needed > available:
        stages = f" --pp {config.pp}" if config.pp > 1 else ""
        found = f"{torch.cuda.device_count()} found"
        raise DeviceError(
            f"--tp {config.tp}{stages} needs {needed} GPUs from {first} on: {found}",
            f"use --tp {max(1, available // config.pp)} or less, or --tp auto"
            if available >= config.pp
            else f"use --pp {available} or less",
        )


def _num_gpus(first: "torch.device") -> int:
    """Return the number of GPUs from `first` on."""
    import torch

    return torch.cuda.device_count() - (first.index or 0)


def _smallest_tp(config: EngineConfig, shape: ModelConfig, schemes: Mapping[str, Scheme]) -> int:
    """Return the smallest number of ranks with which every GPU has room for its shard.

    If there is none, 1 for a model with experts, some of which then are in main memory.
    """
    import torch

    from swiftchat.engine.device.device import available_bytes, find_device
    from swiftchat.engine.model.memory import plan_shard_cache, workspace_bytes

    first = find_device(config.device)
    if first.type == "cpu":
        return 1
    require_gpus(replace(config, tp=1))
    dtype: torch.dtype = getattr(torch, config.dtype or shape.dtype)
    context = config.ctx_size_tokens or min(_CONTEXT_TOKENS, shape.max_context_tokens)
    with_context, start = replace(config, ctx_size_tokens=context), first.index or 0
    chunk_tokens = config.chunk_tokens or _CHUNK_TOKENS

    def free_bytes(index: int) -> int:  # a query takes some of the GPU's memory
        free = available_bytes(torch.device("cuda", start + index))
        return min(free, config.gpu_memory_bytes or free)

    for tp, least_bytes in rank_counts(tp_choices(shape), config.pp, _num_gpus(first), free_bytes):
        shards = [shard_of(shape, tp, 0, stage, config.pp) for stage in range(config.pp)]
        try:
            for shard in shards:
                packed_bytes: int | None = None
                if schemes:
                    packed_bytes = gpu_weight_bytes(shard, schemes, dtype.itemsize)
                workspace = workspace_bytes(shard.local_config, chunk_tokens, dtype)
                plan_shard_cache(
                    with_context,
                    shard,
                    dtype,
                    workspace,
                    least_bytes,
                    packed_bytes,
                    has_spares=config.kernels,
                )
        except OutOfMemory as error:
            too_small = OutOfMemory(f"on {tp * config.pp} GPUs: {error.message}", error.hint)
        else:
            return tp
    if shape.moe is not None and config.pp == 1:
        return 1  # experts go to main memory
    raise too_small
