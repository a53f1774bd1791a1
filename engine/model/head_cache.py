"""The part of the KV cache that a prediction head has."""

import torch
from torch import Tensor

from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.weights.architectures.config import ModelConfig


class HeadCache:
    """What a head keeps of each token in the blocks of the model's KV cache.

    `kv` are keys and values of its layer. The features of a token, which the next token reads, are
    rows of `hidden_size` elements.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        heads_first: bool,
    ) -> None:
        self.kv = KVCache(config, num_blocks, block_size, dtype, device, heads_first=heads_first)
        # Slot -1, that of padding, is in a block behind the others.
        shape = num_blocks + 1, block_size, config.hidden_size
        blocks = torch.empty(shape, dtype=dtype, device=device)
        self._rows = blocks.view(-1, config.hidden_size)
        self.tensors = (*self.kv.tensors, blocks[:num_blocks].unsqueeze(0))

    @staticmethod
    def bytes_per_token(config: ModelConfig, item_bytes: int) -> int:
        """Return the bytes of a token in a cache of elements of this size."""
        (attention,) = config.attentions
        rows, width = attention.cached_rows
        return (rows * width + config.hidden_size) * item_bytes

    def write(self, slots: Tensor, features: Tensor) -> None:
        """Store features, fp32 [n, hidden_size], in slots [n]; none where a slot is below 0."""
        self._rows[slots.long()] = features.to(self._rows.dtype)

    def read(self, slots: Tensor) -> Tensor:
        """Return the features in slots int64 [n], fp32; zeros for slots below 0."""
        return self._rows[slots].float().masked_fill_((slots < 0).unsqueeze(1), 0.0)
