"""The virtual tokens of a soft prompt on the device, and in the KV cache."""

import torch
from torch import Tensor

from swiftchat.engine.load.canonicalize import head_order
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.model.quantized_kv import QuantizedKV
from swiftchat.engine.schedule.sequence import TokenSequence
from swiftchat.engine.schedule.tuning import VirtualTokens
from swiftchat.weights.adapters.soft_prompt import SoftPrompt
from swiftchat.weights.parallel.tensor_parallel import Shard


def virtual_tokens(
    prompt: SoftPrompt, shard: Shard, dtype: torch.dtype, device: torch.device
) -> VirtualTokens:
    """Return this rank's part of a soft prompt, in the decoder's order of the elements of a head.

    `dtype` is that of keys and values. Raises `BadModelFile` for numbers that are not finite.
    """
    values = torch.from_numpy(prompt.read())
    if not prompt.is_prefix:
        return VirtualTokens(prompt.count, embeddings=values)
    layers, heads = slice(*shard.layers), slice(*shard.kv_heads)
    keys, values = values[:, layers, :, heads].unbind(2)
    order = head_order(shard.config.rope, shard.config.attention.head_dim)
    if order is not None:
        keys = keys[..., order]
    kv = torch.cat([keys, values], 2).transpose(0, 1)
    return VirtualTokens(prompt.count, kv=kv.to(dtype).to(device).contiguous())


def store_virtual(cache: KVCache, sequence: TokenSequence, *, heads_first: bool) -> None:
    """Write the keys and values of a sequence's virtual tokens to its blocks."""
    assert sequence.tuning is not None and sequence.tuning.virtual is not None
    virtual, size = sequence.tuning.virtual, cache.block_size
    assert virtual.kv is not None
    positions = torch.arange(virtual.count)
    blocks = torch.tensor(sequence.block_table)[positions // size]
    places = (blocks.to(virtual.kv.device), (positions % size).to(virtual.kv.device))
    for layer, new in zip(cache.layers, virtual.kv, strict=True):
        if isinstance(layer, QuantizedKV):
            for tensor, rows in zip(layer.tensors, layer.quantize(new), strict=True):
                _write(tensor, places, rows, heads_first=heads_first)
        else:
            _write(layer, places, new, heads_first=heads_first)


def _write(layer: Tensor, places: tuple[Tensor, Tensor], new: Tensor, *, heads_first: bool) -> None:
    """Write new [n, heads, ...] to (block, offset) places of a layer's tensor."""
    tokens_first = layer.transpose(1, 2) if heads_first else layer
    tokens_first[places] = new
