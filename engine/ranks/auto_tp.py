"""How many ranks compute a model or a stage of it, known before any of them is started."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from swiftchat.engine.api.memory_estimate import gpu_weight_bytes, packed_schemes
from swiftchat.engine.api.params import EngineConfig
from swiftchat.errors import DeviceError, OutOfMemory
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.model.directory import Model
from swiftchat.weights.model.dummy import dummy_config, dummy_schemes, parse_dummy_name
from swiftchat.weights.parallel.tensor_parallel import shard_of, tp_choices
from swiftchat.weights.quantization.scheme import Scheme

if TYPE_CHECKING:
    import torch

# The context that is to fit on the GPUs that `auto` chooses, if none was asked for.
_CONTEXT_TOKENS = 4096
_CHUNK_TOKENS = 4096  # the engine's with kernels, which take the most memory


def num_ranks(config: EngineConfig, path: Path) -> int:
    """How many ranks each stage is asked to have, if the model can be divided so; without torch.

    Raises `UsageError` where it cannot. For `auto` torch is needed after all, and `OutOfMemory`
    raised where all GPUs together are too small.
    """
    if config.tp == config.pp == 1:
        return 1
    model = None if config.dummy else Model.open(path)
    shape = model.config if model else dummy_config(config.dummy or "")
    shard_of(shape, 1 if config.tp == "auto" else config.tp, 0, num_stages=config.pp)
    if config.tp != "auto":
        return config.tp
    asked = parse_dummy_name(config.dummy or "")[1]
    forms = packed_schemes(model.quantized_tensors) if model else dummy_schemes(shape, asked)
    return _fewest(config, shape, forms if config.kernels else {})


def require_gpus(config: EngineConfig) -> None:
    """Raise `DeviceError` where there are fewer GPUs than ranks."""
    import torch

    from swiftchat.engine.device.device import find_device

    first = find_device(config.device)
    assert config.tp != "auto"  # `num_ranks` comes before
    needed, here = config.tp * config.pp, _num_gpus(first) if first.type == "cuda" else 0
    if first.type == "cuda" and needed > here:
        stages = f" --pp {config.pp}" if config.pp > 1 else ""
        found = f"{torch.cuda.device_count()} found"
        raise DeviceError(
            f"--tp {config.tp}{stages} needs {needed} GPUs from {first} on: {found}",
            f"use --tp {max(1, here // config.pp)} or less, or --tp auto"
            if here >= config.pp
            else f"use --pp {here} or less",
        )


def _num_gpus(first: "torch.device") -> int:
    """How many there are from this one on."""
    import torch

    return torch.cuda.device_count() - (first.index or 0)


def _fewest(config: EngineConfig, shape: ModelConfig, forms: Mapping[str, Scheme]) -> int:
    """The fewest GPUs, from the first on, each of which has room for its share and a context."""
    import torch

    from swiftchat.engine.device.device import available_bytes, find_device
    from swiftchat.engine.model.memory import plan_share

    first = find_device(config.device)
    if first.type == "cpu":
        return 1
    require_gpus(replace(config, tp=1))
    dtype: torch.dtype = getattr(torch, config.dtype or shape.dtype)
    context = config.ctx_size_tokens or min(_CONTEXT_TOKENS, shape.max_context_tokens)
    asked, start = replace(config, ctx_size_tokens=context), first.index or 0
    free_bytes: list[int] = []
    most = _num_gpus(first) // config.pp
    for n in (n for n in tp_choices(shape) if n <= most):
        # Not of more GPUs than needed: asking one takes some of its memory.
        indices = range(start + len(free_bytes), start + n * config.pp)
        free_bytes += [available_bytes(torch.device("cuda", index)) for index in indices]
        shares = [shard_of(shape, n, 0, stage, config.pp) for stage in range(config.pp)]
        chunk_tokens = config.chunk_tokens or _CHUNK_TOKENS
        try:
            for share in shares:
                packed_bytes = gpu_weight_bytes(share, forms, dtype.itemsize) if forms else None
                plan_share(asked, share, dtype, chunk_tokens, min(free_bytes), packed_bytes)
        except OutOfMemory as error:
            refusal = OutOfMemory(f"on {n * config.pp} GPUs: {error.message}", error.hint)
        else:
            return n
    raise refusal
