"""Quantized tensors of a checkpoint: kept in their scheme if possible, else dequantized."""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from swiftchat.engine.api.memory_estimate import (
    cpu_weight_bytes,
    gpu_weight_bytes,
    packed_schemes,
)
from swiftchat.engine.linear.factory import WeightFactory
from swiftchat.engine.linear.w8a8 import W8A8Weight, activation_scheme
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.load.assemble import NamedSlices
from swiftchat.errors import BadModelFile
from swiftchat.weights.model.checkpoint import Checkpoint
from swiftchat.weights.parallel.division import TensorSlice
from swiftchat.weights.parallel.tensor_parallel import Shard
from swiftchat.weights.quantization.scheme import (
    GgufBlocks,
    QuantizedMatrix,
    Scheme,
    Spans,
    slice_blocks,
    slice_matrix,
)
from swiftchat.weights.quantization.stored_tensor import as_float32

Matrix = TypeVar("Matrix", GgufBlocks, QuantizedMatrix)

# After the tensor that is packed, so that the disk does not wait for the packing.
_PREFETCH_BYTES = 1 << 26


def resident_estimate(
    shard: Shard, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device
) -> int:
    """Bytes of a shard's weights for the kernels of a device, with quantized tensors.

    On the CPU an estimate: some of them may have to be dequantized, which shows when they are
    read.
    """
    packed = checkpoint.quantized
    if device.type != "cpu":
        return gpu_weight_bytes(shard, packed_schemes(packed), dtype.itemsize)
    return cpu_weight_bytes(shard, packed, dtype.itemsize)


def load_matrix(
    checkpoint: Checkpoint,
    slices: NamedSlices,
    factory: WeightFactory,
    dtype: torch.dtype,
    device: torch.device,
    *,
    is_table: bool,
) -> LinearWeight:
    """Load the parts as one weight, with quantized activations if checkpoint and factory have them.

    Neighbors in one scheme become one matrix, and so do those that are dequantized; several
    matrices become a merged weight.
    """
    runs = [list(run) for _, run in groupby(slices, lambda one: _kind(checkpoint, one[0], factory))]
    found = [(run, _load_quantized(checkpoint, run, factory, dtype, is_table)) for run in runs]
    parts: list[LinearWeight] = []
    for is_quantized, some in groupby(found, lambda each: each[1] is not None):
        if is_quantized:
            parts += [weight for _, weight in some if weight is not None]
        else:
            plain = [one for run, _ in some for one in run]
            parts.append(factory.plain(dequantize(checkpoint, plain, dtype, device)))
    weight = parts[0] if len(parts) == 1 else factory.merged(parts)
    if is_table:
        return weight
    if not factory.quantizes_activations:
        return weight
    scheme = activation_scheme([checkpoint.quantized.get(name) for name, _ in slices])
    return weight if scheme is None else W8A8Weight(weight, scheme)


def load_experts(
    checkpoint: Checkpoint,
    slices: NamedSlices,
    factory: WeightFactory,
    dtype: torch.dtype,
    device: torch.device,
) -> Sequence[LinearWeight]:
    """Load a tensor of experts as one weight for each, quantized if the device can.

    Plain ones are [inputs, outputs] as in the file, quantized ones [outputs, inputs].
    """
    ((name, part),) = slices
    stored = checkpoint.quantized[name]
    if factory.keeps_quantized:
        if factory.blocks is not None and isinstance(_kind(checkpoint, name, factory), str):
            assert stored.read_blocks is not None
            from_blocks, on_packed = factory.blocks.from_blocks, checkpoint.release_pages
            blocks = of_experts(stored.read_blocks(), stored.shape, part, slice_blocks)
            if blocks is not None:
                return [from_blocks([each], dtype, on_packed) for each in blocks]
        if stored.packed is not None:
            matrices = of_experts(stored.packed.read(), stored.shape, part, slice_matrix)
            weights = quantized_experts(matrices, factory, dtype)
            if weights is not None:
                return weights
    return [factory.plain(each) for each in dequantize(checkpoint, slices, dtype, device)]


def quantized_experts(
    matrices: Sequence[QuantizedMatrix] | None, factory: WeightFactory, dtype: torch.dtype
) -> Sequence[LinearWeight] | None:
    """Return a weight for each of the matrices; None if one must be dequantized."""
    weights: list[LinearWeight] = []
    for matrix in matrices or ():
        weight = factory.quantized([matrix], dtype)
        if weight is None:
            return None
        weights.append(weight)
    return weights or None


def of_experts(
    matrices: Matrix,
    shape: tuple[int, ...],
    part: TensorSlice,
    cut: Callable[[Matrix, int, Spans], Matrix | None],
) -> list[Matrix] | None:
    """Return the part of each expert's matrix, which lie one below the other.

    `shape` is [experts, inputs, outputs] of the tensor. None if the part begins or ends inside a
    block.
    """
    num_experts, _, num_rows = shape
    rows = part.spans if part.axis == 2 else ((0, num_rows),)
    found: list[Matrix] = []
    for expert in range(num_experts):
        first = expert * num_rows
        own = cut(matrices, 0, [(first + start, first + stop) for start, stop in rows])
        if own is not None and part.axis == 1:
            own = cut(own, 1, part.spans)
        if own is None:
            return None
        found.append(own)
    return found


def dequantize(
    checkpoint: Checkpoint, slices: NamedSlices, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Load the parts joined in `dtype`; some of their tensors are quantized.

    Raises `BadModelFile` if an element of a quantized one is infinite or NaN.
    """

    def whole(name: str) -> Tensor:
        if name not in checkpoint.quantized:
            array = as_float32(checkpoint.read(name), checkpoint.tensors[name].dtype)
            return torch.from_numpy(array).to(dtype).to(device)
        tensor = checkpoint.quantized[name]
        chunks = []
        for chunk in tensor.chunks():
            if not np.isfinite(chunk).all():
                raise BadModelFile(f"tensor {name}: expected finite scales, found NaN or infinity")
            chunks.append(torch.from_numpy(chunk).to(dtype).to(device))
        return torch.cat(chunks).view(tensor.shape)

    pieces = [
        tensor.narrow(part.axis, start, end - start)
        for tensor, part in ((whole(name), part) for name, part in slices)
        for start, end in part.spans
    ]
    return torch.cat(pieces, slices[0][1].axis)


def _kind(checkpoint: Checkpoint, name: str, factory: WeightFactory) -> str | Scheme | None:
    """Return how a tensor can stay quantized: a type of blocks, or a scheme; None: it cannot."""
    tensor = checkpoint.quantized.get(name)
    if tensor is None:
        return None
    types = () if factory.blocks is None else factory.blocks.block_types
    if tensor.read_blocks is not None and tensor.format in types:
        return tensor.format
    return None if tensor.packed is None else tensor.packed.scheme


def _load_quantized(
    checkpoint: Checkpoint,
    slices: NamedSlices,
    factory: WeightFactory,
    dtype: torch.dtype,
    is_table: bool,
) -> LinearWeight | None:
    """Load the parts of one kind; None: they must be dequantized."""
    if not factory.keeps_quantized:
        return None
    if factory.blocks is not None and isinstance(_kind(checkpoint, slices[0][0], factory), str):
        blocks = _sliced_blocks(checkpoint, slices)
        if blocks is not None:
            return factory.blocks.from_blocks(blocks, dtype, checkpoint.release_pages)
    parts: list[QuantizedMatrix] = []
    for name, part in slices:
        tensor = checkpoint.quantized.get(name)
        if tensor is None or tensor.packed is None:
            return None
        own = slice_matrix(tensor.packed.read(), part.axis, part.spans)
        if own is None:
            return None
        parts.append(own)
    weight = factory.quantized(parts, dtype)
    if weight is None or (is_table and not weight.supports_rows):
        return None
    return weight


def _sliced_blocks(checkpoint: Checkpoint, slices: NamedSlices) -> list[GgufBlocks] | None:
    """Return the parts as blocks; None if a part begins or ends inside one."""
    parts = []
    for name, part in slices:
        read = checkpoint.quantized[name].read_blocks
        assert read is not None
        checkpoint.prefetch(name, _PREFETCH_BYTES)
        own = slice_blocks(read(), part.axis, part.spans)
        if own is None:
            return None
        parts.append(own)
    return parts
