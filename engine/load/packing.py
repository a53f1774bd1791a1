"""Quantized tensors on their way to the device: packed where there is a form, or decoded."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Literal

import torch
from torch import Tensor

from swiftchat.engine.api.memory_estimate import gpu_weight_bytes, packed_schemes
from swiftchat.engine.linear.merged import MergedWeight
from swiftchat.engine.linear.quantized import Weight, has_rows, packed_weight
from swiftchat.engine.linear.quantized_gpu import packed_matrix
from swiftchat.weights.architectures.tensors import expected_tensors
from swiftchat.weights.model.checkpoint import Checkpoint
from swiftchat.weights.parallel.tensor_parallel import Shard, TensorSlice
from swiftchat.weights.quantization.scheme import QuantizedMatrix, Scheme, slice_matrix
from swiftchat.weights.quantization.stored_tensor import as_float32

Wanted = Sequence[tuple[str, TensorSlice]]
# What is done with a tensor: anything (so it has to be a plain one), products, or looking up rows.
Use = Literal["plain", "product", "lookup"]
# The parts under each other as one packed matrix to multiply the dtype with, or None.
Pack = Callable[[Sequence[QuantizedMatrix], torch.dtype], Weight | None]


def packing(device: torch.device, has_kernels: bool) -> Pack | None:
    """How matrices stay packed: for torch's operators on the CPU, for our kernels on a GPU.

    None where they are decoded: torch's operators on a GPU have no use for them.
    """
    if device.type == "cpu":
        return packed_weight
    return partial(packed_matrix, device=device) if has_kernels else None


def resident_estimate(
    share: Shard, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device
) -> int:
    """Bytes that a rank's weights of a checkpoint with `packed` tensors take.

    On the CPU those are the least there will be: which stay packed is known when they are read.
    """
    packed = checkpoint.quantized
    if device.type != "cpu":
        return gpu_weight_bytes(share, packed_schemes(packed), dtype.itemsize)
    whole_bytes = {
        name: checkpoint.nbytes(name)
        if name in packed and packed[name].packed is not None
        else math.prod(shape) * dtype.itemsize
        for name, shape in expected_tensors(share.config).items()
    }
    return share.weights_bytes(whole_bytes)


def packed_or_decoded(
    checkpoint: Checkpoint,
    wanted: Wanted,
    use: Use,
    pack: Pack | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Weight:
    """The wanted parts together, as they are packed where `pack` has a form for them.

    Neighbors in one form become one matrix, and so do those that have none; if there are several
    matrices then, they are `MergedWeight`.
    """
    runs = [list(run) for _, run in groupby(wanted, lambda one: _form(checkpoint, one[0]))]
    found = [(run, _packed(checkpoint, run, use, pack, dtype)) for run in runs]
    weights: list[Weight] = []
    for is_packed, some in groupby(found, lambda each: each[1] is not None):
        if is_packed:
            weights += [weight for _, weight in some if weight is not None]
        else:
            plain = [one for run, _ in some for one in run]
            weights.append(_decoded(checkpoint, plain, dtype, device))
    return weights[0] if len(weights) == 1 else MergedWeight(weights)


def _form(checkpoint: Checkpoint, name: str) -> Scheme | None:
    """What those have in common that can be packed together; None: it has no such form."""
    tensor = checkpoint.quantized.get(name)
    keeping = None if tensor is None else tensor.packed
    return None if keeping is None else keeping.scheme


def _packed(
    checkpoint: Checkpoint, wanted: Wanted, use: Use, pack: Pack | None, dtype: torch.dtype
) -> Weight | None:
    if pack is None:
        return None
    parts: list[QuantizedMatrix] = []
    for name, part in wanted:
        tensor = checkpoint.quantized.get(name)
        if tensor is None or tensor.packed is None:
            return None
        own = slice_matrix(tensor.packed.read(), part.axis, part.spans)
        if own is None:
            return None
        parts.append(own)
    weight = pack(parts, dtype)
    return weight if use != "lookup" or has_rows(weight) else None


def _decoded(
    checkpoint: Checkpoint, wanted: Wanted, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """The wanted parts together, of tensors of which some are packed."""

    def whole(name: str) -> Tensor:
        if name not in checkpoint.quantized:
            array = as_float32(checkpoint.read(name), checkpoint.tensors[name].dtype)
            return torch.from_numpy(array).to(dtype).to(device)
        tensor = checkpoint.quantized[name]
        pieces = [torch.from_numpy(piece).to(dtype).to(device) for piece in tensor.chunks()]
        return torch.cat(pieces).view(tensor.shape)

    cut_out = [
        tensor.narrow(part.axis, start, end - start)
        for tensor, part in ((whole(name), part) for name, part in wanted)
        for start, end in part.spans
    ]
    return torch.cat(cut_out, wanted[0][1].axis)
