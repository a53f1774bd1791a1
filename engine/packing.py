"""Quantised tensors on their way to the device: packed where there is a form, or decoded."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from swiftchat.engine.packed_gpu import packed_matrix
from swiftchat.engine.packed_sizes import weights_on_gpu
from swiftchat.engine.quantised import Int4Weight, Int8GroupsWeight, Weight, packed_weight
from swiftchat.weights.checkpoint import Checkpoint
from swiftchat.weights.families import expected_tensors
from swiftchat.weights.kept import Kept, cut
from swiftchat.weights.packed import as_float32
from swiftchat.weights.tensor_parallel import Part, Share

Wanted = Sequence[tuple[str, Part]]
# What is done with a tensor: anything (so it has to be a plain one), products, or looking up rows.
Use = Literal["plain", "product", "lookup"]
# The parts under each other as one packed matrix to multiply the dtype with, or None.
Pack = Callable[[Sequence[Kept], torch.dtype], Weight | None]


def packing(device: torch.device, has_kernels: bool) -> Pack | None:
    """How matrices stay packed: for torch's operators on the CPU, for our kernels on a GPU.

    None where they are decoded: torch's operators on a GPU have no use for them.
    """
    if device.type == "cpu":
        return packed_weight
    return partial(packed_matrix, device=device) if has_kernels else None


def resident_estimate(
    share: Share, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device
) -> int:
    """Bytes that a rank's weights of a checkpoint with `packed` tensors take.

    On the CPU those are the least there will be: which stay packed is known when they are read.
    """
    packed = checkpoint.packed
    if device.type != "cpu":
        return weights_on_gpu(share, packed, dtype.itemsize)
    whole_bytes = {
        name: checkpoint.nbytes(name)
        if name in packed and packed[name].kept is not None
        else math.prod(shape) * dtype.itemsize
        for name, shape in expected_tensors(share.config).items()
    }
    return share.weights_bytes(whole_bytes)


def packed_or_decoded(
    checkpoint: Checkpoint, wanted: Wanted, use: Use, pack: Pack | None, dtype: torch.dtype,
    device: torch.device,
) -> Weight:  # fmt: skip
    """The wanted parts together, as they are packed where `pack` has a form for them all."""
    weight = None if pack is None else _packed(checkpoint, wanted, pack, dtype)
    if weight is None or (
        use == "lookup" and not isinstance(weight, Int4Weight | Int8GroupsWeight)
    ):
        return _decoded(checkpoint, wanted, dtype, device)
    return weight


def _packed(
    checkpoint: Checkpoint, wanted: Wanted, pack: Pack, dtype: torch.dtype
) -> Weight | None:
    parts: list[Kept] = []
    for name, part in wanted:
        tensor = checkpoint.packed.get(name)
        if tensor is None or tensor.kept is None:
            return None
        own = cut(tensor.kept.read(), part.axis, part.spans)
        if own is None:
            return None
        parts.append(own)
    return pack(parts, dtype)


def _decoded(checkpoint: Checkpoint, wanted: Wanted, dtype: torch.dtype,
             device: torch.device) -> Tensor:  # fmt: skip
    """The wanted parts together, of tensors of which some are packed."""

    def whole(name: str) -> Tensor:
        if name not in checkpoint.packed:
            array = as_float32(checkpoint.read(name), checkpoint.tensors[name].dtype)
            return torch.from_numpy(array).to(dtype).to(device)
        tensor = checkpoint.packed[name]
        pieces = [torch.from_numpy(piece).to(dtype).to(device) for piece in tensor.pieces()]
        return torch.cat(pieces).view(tensor.shape)

    cut_out = [
        tensor.narrow(part.axis, start, end - start)
        for tensor, part in ((whole(name), part) for name, part in wanted)
        for start, end in part.spans
    ]
    return torch.cat(cut_out, wanted[0][1].axis)
