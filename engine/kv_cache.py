"""The tensors of the KV cache: which numbers a block's slots hold."""

from collections.abc import Sequence

import torch

from swiftchat.weights.config import ModelConfig


class KVCache:
    """Keys and values of every layer, allocated once.

    `layers[i]` is [num_blocks, block_size, 2 * num_kv_heads, head_dim]: a token's keys of all
    heads, then its values, so that one write stores both. Memory of the CPU's cache is
    committed by the system only when a block is first written.
    """

    def __init__(self, config: ModelConfig, num_blocks: int, block_size: int,
                 dtype: torch.dtype, device: torch.device) -> None:  # fmt: skip
        shape = (num_blocks, block_size, 2 * config.num_kv_heads, config.head_dim)
        self._all = torch.empty((config.num_layers, *shape), dtype=dtype, device=device)
        self.layers = self._all.unbind()
        self.block_size = block_size
        self.num_bytes = self._all.nbytes

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (from, to) of all layers, in the given order."""
        for source, destination in copies:
            if source != destination:
                self._all[:, destination] = self._all[:, source]
