"""The parts of the KV cache that prediction heads have."""

import torch
from torch import Tensor

from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.weights.architectures.config import ModelConfig


class Features:
    """What heads read of the hidden states of each token: rows of `width` elements.

    In the blocks of the model's KV cache.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        width: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        # Slot -1, that of padding, is in a block behind the others.
        blocks = torch.empty(num_blocks + 1, block_size, width, dtype=dtype, device=device)
        self._rows = blocks.view(-1, width)
        self.tensors = (blocks[:num_blocks].unsqueeze(0),)

    def write(self, slots: Tensor, features: Tensor) -> None:
        """Store features, fp32 [n, width], in slots [n]; none where a slot is below 0."""
        self._rows[slots.long()] = features.to(self._rows.dtype)

    def read(self, slots: Tensor) -> Tensor:
        """Return the features in slots int64 [n], fp32; zeros for slots below 0."""
        return self._rows[slots].float().masked_fill_((slots < 0).unsqueeze(1), 0.0)


class HeadCache:
    """What a head of one layer keeps of each token in the blocks of the model's KV cache.

    `kv` are keys and values of the layer, `features` what the next token reads.
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
        self.features = Features(num_blocks, block_size, config.hidden_size, dtype, device)
        self.tensors = (*self.kv.tensors, *self.features.tensors)

    @staticmethod
    def bytes_per_token(config: ModelConfig, item_bytes: int) -> int:
        """Return the bytes of a token in a cache of elements of this size."""
        (attention,) = config.attentions
        rows, width = attention.cached_rows
        return (rows * width + config.hidden_size) * item_bytes
