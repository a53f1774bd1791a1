"""The tensors of the KV cache: which numbers a block's slots hold."""

from collections.abc import Sequence

import torch

from swiftchat.weights.config import ModelConfig


class KVCache:
    """Keys and values of every layer, allocated once.

    `keys[layer]` and `values[layer]` are [num_blocks, block_size, num_kv_heads, head_dim].
    Memory of the CPU's cache is committed by the system only when a block is first written.
    """

    def __init__(self, config: ModelConfig, num_blocks: int, block_size: int,
                 dtype: torch.dtype, device: torch.device) -> None:  # fmt: skip
        shape = (config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_dim)
        keys_and_values = torch.empty((2, *shape), dtype=dtype, device=device)
        self.keys, self.values = keys_and_values.unbind()
        self.block_size = block_size
        self.num_bytes = keys_and_values.nbytes

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (from, to) of all layers, in the given order."""
        for source, destination in copies:
            if source != destination:
                self.keys[:, destination] = self.keys[:, source]
                self.values[:, destination] = self.values[:, source]
