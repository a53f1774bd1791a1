"""The memory plan: context length and size of the KV cache, before anything is allocated."""

from dataclasses import dataclass, replace

import torch

from swiftchat.engine.api.memory_estimate import (
    RESERVED_FRACTION,
    kv_bytes_per_token,
    plain_weight_bytes,
)
from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.model.state_cache import bytes_per_sequence
from swiftchat.engine.schedule.states import MAX_VERIFIED
from swiftchat.errors import OutOfMemory, UsageError
from swiftchat.weights.architectures.parts.attention import NO_ATTENTION
from swiftchat.weights.architectures.parts.layers import LayerConfig
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.parallel.tensor_parallel import Shard

MIN_CONTEXT_TOKENS = 256
_NUM_SNAPSHOTS = 16  # of states, for about eight turns
_DEFAULT_CONTEXT_FRACTION = 0.5  # of the room for a cache, if no context was requested


@dataclass(frozen=True)
class CachePlan:
    """The KV cache to allocate: `num_blocks` blocks, and the longest context of one sequence.

    `num_states` slots are for the states of sequences, if the model has some.
    """

    num_blocks: int
    ctx_size_tokens: int
    num_states: int = 0


def workspace_bytes(
    config: ModelConfig, chunk_tokens: int, dtype: torch.dtype, num_rows: int = 0
) -> int:
    """Return an upper estimate of the activations of a forward pass over `chunk_tokens` tokens.

    Includes the logits, penalties and sampling of `num_rows` decode rows.
    """
    widest = 4 * config.hidden_size + max(map(_layer_elements, config.layers))
    if (moe := config.moe) is not None:
        # The activations and outputs of all chosen experts.
        widest += moe.experts_per_token * (moe.expert_size + config.hidden_size)
    # Scans of prompts are computed in fp32, by torch.
    widest += 6 * _mixer_inputs(config)
    if config.embeddings.per_layer is not None:
        widest += 3 * config.num_layers * config.embeddings.per_layer.width
    if config.streams is not None:
        # Before a layer, predicted, and changed by it, all in fp32.
        widest += 4 * config.streams.count * config.hidden_size
    logits_bytes = max(64 * 8, num_rows * 20) * config.vocab_size
    return 2 * chunk_tokens * widest * dtype.itemsize + logits_bytes


def _layer_elements(layer: LayerConfig) -> int:
    attention = layer.attention or NO_ATTENTION
    num_heads = attention.num_heads * (1 + (attention.gate is not None))
    num_heads += 2 * attention.num_kv_heads
    inner = 0 if layer.mlp is None else layer.mlp.intermediate_size
    return 2 * num_heads * attention.head_dim + 3 * inner


def native_workspace_bytes(config: ModelConfig, num_tokens: int, num_logits: int) -> int:
    """Return an upper estimate of the memory of a native CPU program for batches of this size."""
    attention, mlp, moe = config.attention, config.mlp, config.moe
    num_heads = attention.num_heads + 2 * attention.num_kv_heads
    widest = 4 * config.hidden_size + 2 * num_heads * attention.head_dim
    widest += 0 if mlp is None else 3 * mlp.intermediate_size
    if moe is not None:
        # Rows of all chosen experts: input, gate and up, activation, output.
        widest += moe.experts_per_token * (3 * moe.expert_size + 2 * config.hidden_size)
        widest += 3 * moe.shared_size + moe.num_experts
    widest += _mixer_inputs(config)
    logits_bytes = num_logits * config.vocab_size * 4
    return 2 * num_tokens * widest * 4 + logits_bytes


def _mixer_inputs(config: ModelConfig) -> int:
    """Return the projected elements of a token that a mixer with states reads."""
    if config.mixer is None:
        return 0
    shapes, hidden_size = config.mixer.shapes(config.hidden_size), config.hidden_size
    projections = [shapes[name] for name in config.mixer.tensors if name != "mixer_out"]
    return sum(shape[0] for shape in projections if shape[1:] == (hidden_size,))


def plan_shard_cache(
    config: EngineConfig,
    shard: Shard,
    dtype: torch.dtype,
    workspace_bytes: int,
    available_bytes: int,
    weights_bytes: int | None = None,
    *,
    has_spares: bool = False,
    head_bytes_per_token: int = 0,
) -> CachePlan:
    """`plan_cache` for one rank's shard of a model.

    `weights_bytes` is the size of all weights if some of them are quantized. With `has_spares`
    every sequence has two slots for states. A prediction head adds `head_bytes_per_token`.
    """
    local = shard.local_config
    # Several ranks do not capture steps that verify proposed tokens of models with states.
    num_verified = 0 if has_spares and shard.size > 1 else MAX_VERIFIED
    slots = 1 + has_spares, num_verified
    num_states, state_bytes = _plan_states(config, local, available_bytes, *slots)
    if weights_bytes is None:
        weights_bytes = plain_weight_bytes(shard, dtype.itemsize)
    kv_bytes = kv_bytes_per_token(local, dtype.itemsize, config.kv_dtype) + head_bytes_per_token
    plan = plan_cache(
        config,
        max_context_tokens=local.max_context_tokens,
        longest_context_tokens=shard.config.longest_context_tokens,
        # A model without attention needs none: its blocks are only numbers.
        bytes_per_token=max(1, kv_bytes),
        weights_bytes=weights_bytes,
        workspace_bytes=workspace_bytes + num_states * state_bytes,
        available_bytes=available_bytes,
    )
    return replace(plan, num_states=num_states)


def _plan_states(
    engine: EngineConfig,
    config: ModelConfig,
    available_bytes: int,
    per_sequence: int,
    num_verified: int,
) -> tuple[int, int]:
    """Return the number of slots for states, for one sequence at least, and the bytes of each.

    All sequences, some snapshots and `num_verified` proposed tokens have slots, if a tenth of the
    free memory suffices for them.
    """
    each = bytes_per_sequence(config)
    if not each:
        return 0, 0
    wanted = per_sequence * engine.max_num_seqs + _NUM_SNAPSHOTS + num_verified
    return max(per_sequence + 1, min(wanted, available_bytes // 10 // each)), each


def plan_cache(
    config: EngineConfig,
    *,
    max_context_tokens: int,
    bytes_per_token: int,
    weights_bytes: int,
    available_bytes: int,
    workspace_bytes: int = 0,
    longest_context_tokens: int = 0,
) -> CachePlan:
    """Choose context and cache size; weights are not yet loaded into the available memory.

    The context is at most `max_context_tokens`, unless the engine's configuration requests a longer
    one, at most `longest_context_tokens` if that is more. Raises `UsageError` for a context longer
    than the model's, and `OutOfMemory` with the needed bytes, the free bytes and the largest
    context that fits.
    """
    requested = config.ctx_size_tokens
    longest = max(max_context_tokens, longest_context_tokens)
    if requested is not None and requested > longest:
        raise UsageError(
            f"the context of {requested} tokens is longer than the model's {longest}",
            f"use --ctx-size {longest} or less; at the prompt: /set ctx_size",
        )
    fixed_bytes = weights_bytes + workspace_bytes
    cache_bytes = int(available_bytes * (1 - RESERVED_FRACTION)) - fixed_bytes
    size = config.block_size
    max_tokens = max(0, cache_bytes // bytes_per_token // size * size)
    context = requested or max_context_tokens
    if requested is None:
        default = int(max_tokens * _DEFAULT_CONTEXT_FRACTION) // size * size
        context = min(context, max(default, MIN_CONTEXT_TOKENS))
    num_blocks = -(-max(context, config.cache_tokens or 0) // size)
    if num_blocks * size > max_tokens:
        wanted_bytes = num_blocks * size * bytes_per_token
        raise OutOfMemory(
            f"not enough memory: {(fixed_bytes + wanted_bytes) / 1e9:.2f} GB needed (weights "
            f"{weights_bytes / 1e9:.2f} GB, cache for {num_blocks * size} tokens "
            f"{wanted_bytes / 1e9:.2f} GB), {available_bytes / 1e9:.2f} GB free",
            f"the largest context that fits is --ctx-size {max_tokens}"
            if max_tokens >= size
            else "use a smaller model",
        )
    if config.cache_tokens is None:
        num_blocks = max(num_blocks, min(2 * context, max_tokens) // size)
    return CachePlan(num_blocks, context)
