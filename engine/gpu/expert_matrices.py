"""The matrices of a layer's experts as the GPU kernels read them: by address."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from swiftchat.cuda.ops.moe.expert_matrices import ExpertMatrices
from swiftchat.cuda.packed_layout import PACKED_SCHEMES, TILE_ROWS, tile_bytes, tiles_shape
from swiftchat.engine.gpu.linear.plain import GpuPlainWeight
from swiftchat.engine.gpu.linear.quantized import GpuQuantizedWeight
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.model.moe import Expert


def expert_matrices(
    weights: Sequence[LinearWeight], biases: Sequence[Tensor | None]
) -> ExpertMatrices | None:
    """Return the same matrix of all experts for the kernels; None if they do not read it."""
    first, scheme, group_size = weights[0], "PLAIN", 0
    pairs: list[tuple[Tensor, Tensor | None]] = []
    for weight in weights:
        match weight:
            case GpuQuantizedWeight(matrix):
                scheme, group_size = matrix.scheme, matrix.group_size
                pairs.append((matrix.tiles, matrix.row_scale))
            case GpuPlainWeight() if weight.kernel_matrices:
                pairs.append((weight.tensors[0], None))
            case _:
                return None
    alike = all(_kind(weight) == _kind(first) for weight in weights)
    aligned = all(values.is_contiguous() and values.data_ptr() % 16 == 0 for values, _ in pairs)
    if not (alike and aligned):
        return None
    values = _addresses([pair[0] for pair in pairs])
    assert values is not None
    return ExpertMatrices(
        scheme,
        *first.shape,
        values,
        _addresses([pair[1] for pair in pairs]),
        _addresses(biases),
        group_size,
    )


def _kind(weight: LinearWeight) -> tuple[object, ...]:
    """Return what must be the same for all experts."""
    return type(weight), weight.description, weight.shape, weight.dtype


def with_shared(
    inputs: ExpertMatrices, outputs: ExpertMatrices, expert: Expert, shared: Expert
) -> tuple[ExpertMatrices, ExpertMatrices] | None:
    """Return the matrices with parts of the shared expert, each as large as `expert`, at the end.

    None if its size is no multiple of the experts', or if it has biases or another scheme.
    """
    size, shared_size = expert.down.shape[1], shared.down.shape[1]
    own = [expert_matrices([weight], [None]) for weight in (shared.gate_up, shared.down)]
    is_whole = shared_size % size == 0 and (
        inputs.scheme == "PLAIN" or size % PACKED_SCHEMES[inputs.scheme].tile_columns == 0
    )
    biases = inputs.biases, outputs.biases, shared.gate_up_bias, shared.down_bias
    first, second = own
    if not is_whole or first is None or second is None or any(b is not None for b in biases):
        return None
    if not (_is_alike(first, inputs) and _is_alike(second, outputs)):
        return None
    itemsize, num_parts = shared.down.dtype.itemsize, shared_size // size
    row_step, column_step = _part_bytes(first, size, itemsize), _part_bytes(second, size, itemsize)
    return (
        _appended(inputs, first, num_parts, row_step[0], 4 * size),
        _appended(outputs, second, num_parts, column_step[1], 0),
    )


def _is_alike(some: ExpertMatrices, other: ExpertMatrices) -> bool:
    return (some.scheme, some.group_size) == (other.scheme, other.group_size)


def _part_bytes(matrices: ExpertMatrices, size: int, itemsize: int) -> tuple[int, int]:
    """Return the bytes between a row and the row `size` below it, and to the column `size` on."""
    scheme, group_size, columns = matrices.scheme, matrices.group_size, matrices.columns
    if scheme == "PLAIN":
        return size * columns * itemsize, size * itemsize
    _, block_bytes = tiles_shape(scheme, matrices.rows, columns, group_size)
    tiles = size // PACKED_SCHEMES[scheme].tile_columns
    return size // TILE_ROWS * block_bytes, tiles * tile_bytes(scheme, group_size)


def _appended(
    matrices: ExpertMatrices, shared: ExpertMatrices, num_parts: int, step: int, scale_step: int
) -> ExpertMatrices:
    """Append the addresses of parts of the shared matrix, `step` bytes apart."""
    parts = torch.arange(num_parts, device=shared.values.device)
    scales = matrices.scales
    if scales is not None and shared.scales is not None:
        scales = torch.cat([scales, shared.scales + scale_step * parts])
    values = torch.cat([matrices.values, shared.values + step * parts])
    return replace(matrices, values=values, scales=scales, num_shared=num_parts)


def _addresses(tensors: Sequence[Tensor | None]) -> Tensor | None:
    """Return the addresses of contiguous tensors on their device, int64; None if one is missing."""
    present = [tensor for tensor in tensors if tensor is not None]
    if len(present) < len(tensors):
        return None
    assert all(tensor.is_contiguous() for tensor in present)
    return torch.tensor([tensor.data_ptr() for tensor in present]).to(present[0].device)
