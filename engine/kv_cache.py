"""The tensors of the KV cache: which numbers a block's slots hold."""

import torch

from swiftchat.weights.config import ModelConfig


class KVCache:
    """Keys and values of every layer, allocated once.

    `layers[i]` is [num_blocks, block_size, 2 * num_kv_heads, head_dim]: a token's keys of all
    heads, then its values, so that one write stores both. With `heads_first`, as the kernels
    want it, [num_blocks, 2 * num_kv_heads, block_size, head_dim]: what one head reads of a block
    lies together. `all` is every layer's. Memory of the CPU's cache is committed by the system
    only when a block is first written.
    """

    def __init__(self, config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype,
                 device: torch.device, *, heads_first: bool = False) -> None:  # fmt: skip
        heads = 2 * config.num_kv_heads
        block = (heads, block_size) if heads_first else (block_size, heads)
        shape = (config.num_layers, num_blocks, *block, config.head_dim)
        self.all = torch.empty(shape, dtype=dtype, device=device)
        self.layers = self.all.unbind()
        self.block_size = block_size
        self.num_bytes = self.all.nbytes


def kv_bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of keys and values one token of context keeps, over all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize
