"""The tensors of the KV cache."""

from collections.abc import Sequence

import torch
from torch import Tensor

from swiftchat.engine.model.quantized_kv import LARGEST, QuantizedKV
from swiftchat.weights.architectures.config import ModelConfig

LayerKV = Tensor | QuantizedKV


class KVCache:
    """Keys and values of every layer, allocated once.

    `layers[i]` is [num_blocks, block_size, 2 * num_kv_heads, head_dim]: a token's keys of all
    heads, then its values, so that one write stores both. With `heads_first`, the layout of the
    kernels, it is [num_blocks, 2 * num_kv_heads, block_size, head_dim]: a head's part of a block is
    contiguous. With `kv_dtype` int8 or fp8 it is a `QuantizedKV` of that layout. `tensors` hold all
    layers, [num_layers, num_blocks, ...]; a copy of a block copies each of them. On the CPU the
    system commits the memory of a block when it is first written.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        heads_first: bool = False,
        kv_dtype: str = "auto",
    ) -> None:
        heads = 2 * config.num_kv_heads
        block = (heads, block_size) if heads_first else (block_size, heads)
        shape = (config.num_layers, num_blocks, *block)
        self.is_quantized = kv_dtype in LARGEST
        self.tensors: tuple[Tensor, ...]
        self.layers: Sequence[LayerKV]
        if self.is_quantized:
            values = torch.empty(*shape, config.head_dim, dtype=torch.int8, device=device)
            scales = torch.empty(shape, device=device)
            self.tensors = (values, scales)
            self.layers = [QuantizedKV(kv_dtype, *of) for of in zip(values, scales, strict=True)]
        else:
            self.tensors = (torch.empty(*shape, config.head_dim, dtype=dtype, device=device),)
            self.layers = self.tensors[0].unbind()
        self.block_size = block_size
        self.num_bytes = sum(tensor.nbytes for tensor in self.tensors)

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (source, destination), in all layers, one after the other."""
        for source, destination in copies:
            if source != destination:
                for tensor in self.tensors:
                    tensor[:, destination] = tensor[:, source]

    def slot_range(self, first: int, num_tokens: int) -> Tensor:
        """View adjacent slots: [num_layers, num_tokens, 2 * num_kv_heads, head_dim].

        Not for a quantized cache or `heads_first`.
        """
        (tensor,) = self.tensors
        return tensor.flatten(1, 2)[:, first : first + num_tokens]
