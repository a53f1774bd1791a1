"""How many ranks compute a model, known before any of them is started."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from swiftchat.engine.params import EngineConfig
from swiftchat.errors import DeviceError, OutOfMemory
from swiftchat.weights.config import ModelConfig
from swiftchat.weights.dummy import dummy_config
from swiftchat.weights.model import Model
from swiftchat.weights.tensor_parallel import share_of, tp_choices

if TYPE_CHECKING:
    import torch

# The context that is to fit on the GPUs that `auto` chooses, if none was asked for.
_CONTEXT_TOKENS = 4096


def with_ranks(config: EngineConfig, path: Path) -> EngineConfig:
    """The config with a number of ranks that the model and this machine allow.

    Raises `UsageError` where the model cannot be divided so, `DeviceError` where there are too
    few GPUs, and for `auto` `OutOfMemory` where all of them together are too small.
    """
    if config.tp == 1:
        return config
    shape = dummy_config(config.dummy) if config.dummy else Model.open(path).config
    if config.tp != "auto":
        share_of(shape, config.tp, 0)
    # Here, not at the top: what cannot be divided is refused before torch is imported.
    from swiftchat.engine.device import find_device

    device = find_device(config.device)
    if device.type == "cpu":
        return replace(config, tp=1 if config.tp == "auto" else config.tp)
    num_gpus = _num_gpus(device)
    if config.tp == "auto":
        return replace(config, tp=_fewest(config, shape, device, num_gpus))
    if config.tp > num_gpus:
        raise DeviceError(
            f"--tp {config.tp} needs {config.tp} GPUs from {device} on: {num_gpus} found",
            f"use --tp {max(n for n in tp_choices(shape) if n <= num_gpus)} or less",
        )
    return config


def _num_gpus(first: "torch.device") -> int:
    import torch

    return torch.cuda.device_count() - (first.index or 0)


def _fewest(config: EngineConfig, shape: ModelConfig, first: "torch.device",
            num_gpus: int) -> int:  # fmt: skip
    """The fewest GPUs, from the first on, each of which has room for its share and a context."""
    import torch

    from swiftchat.engine.device import available_bytes
    from swiftchat.engine.memory import plan_share

    dtype: torch.dtype = getattr(torch, config.dtype or shape.dtype)
    context = config.ctx_size_tokens or min(_CONTEXT_TOKENS, shape.max_context_tokens)
    asked = replace(config, ctx_size_tokens=context)
    free_bytes: list[int] = []
    for n in (n for n in tp_choices(shape) if n <= num_gpus):
        # Not of more GPUs than needed: asking one takes some of its memory.
        indices = range(len(free_bytes), n)
        start = first.index or 0
        free_bytes += [available_bytes(torch.device("cuda", start + i)) for i in indices]
        try:
            plan_share(asked, share_of(shape, n, 0), dtype, config.chunk_tokens or 4096,
                       min(free_bytes))  # fmt: skip
        except OutOfMemory as error:
            refusal = OutOfMemory(f"on {n} GPUs: {error.message}", error.hint)
        else:
            return n
    raise refusal
