"""Copies of whole blocks between tensors of KV caches, in all layers."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.attention.copy_blocks import copy_blocks

Tensors = Sequence[Tensor]
"""Tensors [num_layers, num_blocks, ...] of one cache: values and, if it is quantized, scales."""

CopyBlocks = Callable[[Tensors, Tensors, Sequence[tuple[int, int]]], None]
"""Copies blocks (from, to) of the first tensors to the second ones."""


def copy_by(gpu: Gpu) -> CopyBlocks:
    """Return copies by the GPU, which also reads and writes pinned host memory.

    They are ordered with other work on the current stream.
    """

    def copy(source: Tensors, destination: Tensors, copies: Sequence[tuple[int, int]]) -> None:
        pairs = torch.tensor(copies, dtype=torch.int32, device=gpu.device)
        for from_, to in zip(source, destination, strict=True):
            copy_blocks(gpu, from_, pairs, to)

    return copy


def like(tensors: Tensors, num_blocks: int, *, pinned: bool) -> tuple[Tensor, ...]:
    """Return new tensors in main memory for `num_blocks` blocks of the same cache."""
    return tuple(
        torch.empty(
            (tensor.shape[0], num_blocks, *tensor.shape[2:]),
            dtype=tensor.dtype,
            pin_memory=pinned,
        )
        for tensor in tensors
    )


def block_bytes(tensors: Tensors) -> int:
    """Return the bytes of one block in all layers."""
    return sum(tensor[:, 0].nbytes for tensor in tensors)


def byte_views(tensors: Tensors, block: int) -> list[list[memoryview]]:
    """View the bytes of a block in main memory: for each tensor one view for each layer."""
    return [
        [layer[block].reshape(-1).view(torch.uint8).numpy().data for layer in tensor]
        for tensor in tensors
    ]
