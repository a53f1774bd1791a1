"""Plans what fits before anything is allocated."""

import math
from dataclasses import dataclass

import torch

from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.model.kv_cache import kv_bytes_per_token
from swiftchat.errors import OutOfMemory, UsageError
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.parallel.tensor_parallel import Shard

# What is left to the operating system, other programs and activations.
_KEEP_FREE = 0.15
_SMALLEST_CONTEXT = 256
# The share of free memory a context nobody asked for may take.
_UNASKED_SHARE = 0.5


@dataclass(frozen=True)
class CachePlan:
    """The KV cache to allocate: `num_blocks` blocks, and the longest context of one sequence."""

    num_blocks: int
    ctx_size_tokens: int


def workspace_bytes(shape: ModelConfig, chunk_tokens: int, dtype: torch.dtype) -> int:
    """What a forward pass of a whole chunk needs beside weights and cache, generously."""
    heads = shape.num_heads + 2 * shape.num_kv_heads
    widest = 4 * shape.hidden_size + 2 * heads * shape.head_dim + 3 * shape.intermediate_size
    logits = 64 * shape.vocab_size * 8
    return 2 * chunk_tokens * widest * dtype.itemsize + logits


def plan_share(
    config: EngineConfig,
    share: Shard,
    dtype: torch.dtype,
    chunk_tokens: int | None,
    available_bytes: int,
    packed_bytes: int | None = None,
) -> CachePlan:
    """`plan_cache` for one rank's share of a model.

    `chunk_tokens` is the longest forward pass where our kernels run, which need a workspace;
    `packed_bytes` is what weights take that do not all have `dtype`.
    """
    shape = share.local_config
    plain_bytes = sum(math.prod(size) for size in share.shapes().values()) * dtype.itemsize
    return plan_cache(
        config,
        max_context_tokens=shape.max_context_tokens,
        bytes_per_token=kv_bytes_per_token(shape, dtype, config.kv_dtype),
        weights_bytes=plain_bytes if packed_bytes is None else packed_bytes,
        workspace_bytes=workspace_bytes(shape, chunk_tokens, dtype) if chunk_tokens else 0,
        available_bytes=available_bytes,
    )


def plan_cache(
    config: EngineConfig,
    *,
    max_context_tokens: int,
    bytes_per_token: int,
    weights_bytes: int,
    available_bytes: int,
    workspace_bytes: int = 0,
) -> CachePlan:
    """Choose context and cache size; the weights are still to be loaded into what is available.

    Raises `UsageError` for a context longer than the model's, and `OutOfMemory`, which names
    what is needed, what is free and the largest context that fits.
    """
    asked = config.ctx_size_tokens
    if asked is not None and asked > max_context_tokens:
        raise UsageError(
            f"the context of {asked} tokens is longer than the model's {max_context_tokens}",
            f"use --ctx-size {max_context_tokens} or less",
        )
    room_bytes = int(available_bytes * (1 - _KEEP_FREE)) - weights_bytes - workspace_bytes
    size = config.block_size
    fitting = max(0, room_bytes // bytes_per_token // size * size)
    wanted = asked or max_context_tokens
    if asked is None:
        shared = int(fitting * _UNASKED_SHARE) // size * size
        wanted = min(wanted, max(shared, _SMALLEST_CONTEXT))
    blocks_wanted = -(-max(wanted, config.cache_tokens or 0) // size)
    if blocks_wanted * size > fitting:
        needed_bytes = weights_bytes + workspace_bytes + blocks_wanted * size * bytes_per_token
        raise OutOfMemory(
            f"not enough memory: {needed_bytes / 1e9:.2f} GB needed (weights "
            f"{weights_bytes / 1e9:.2f} GB, cache for {blocks_wanted * size} tokens "
            f"{blocks_wanted * size * bytes_per_token / 1e9:.2f} GB), "
            f"{available_bytes / 1e9:.2f} GB free",
            f"the largest context that fits is --ctx-size {fitting}"
            if fitting >= size
            else "use a smaller model",
        )
    if config.cache_tokens is None:
        blocks_wanted = max(blocks_wanted, min(2 * wanted, fitting) // size)
    return CachePlan(blocks_wanted, wanted)
