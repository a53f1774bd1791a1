"""Random packed matrices, with their exact weights in fp64."""

import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from swiftchat.cuda.packed_layout import PACKED_SCHEMES
from swiftchat.cuda.packed_matrix import (
    LARGEST_MXFP4_SCALE,
    PackedMatrix,
    pack_fp8,
    pack_int4,
    pack_int8,
    pack_int8_groups,
    pack_mxfp4,
    pack_nvfp4,
)
from swiftchat.engine.gpu.linear.plain import LinearKernels
from tests.support.kernels.case import Inputs

_SIZES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1 = (*_SIZES, *(-size for size in _SIZES))  # the numbers of e2m1 by their bits


def kernels_without_gpu() -> LinearKernels:
    """Kernels for tests of packed layouts on the CPU, which multiply nothing."""
    kernels: Any = SimpleNamespace(gpu=SimpleNamespace(device=torch.device("cpu")))
    return kernels


def packed(
    make: Inputs,
    scheme: str,
    group: int,
    rows: int,
    k: int,
    *,
    magnitude: float = 1.0,
    uneven: float = 1.0,
) -> tuple[PackedMatrix, Tensor]:
    """Return a packed matrix for activations of `make.dtype`, and its exact weights [rows, k].

    Weights are about `magnitude`; one row is `uneven` times as large. All values occur.
    """
    scale = make.normal(rows, dtype=torch.float32).abs() + 0.1
    scale[rows // 2] *= uneven
    if scheme == "INT8" and not group:
        values = make.integers(-128, 128, rows, k, dtype=torch.int8)
        scale *= magnitude / 74
        matrix = pack_int8(values, scale, make.dtype)
        return matrix, values.double() * scale.double().unsqueeze(1)
    if scheme == "FP8":
        bits = make.integers(0, 256, rows, k, dtype=torch.uint8)
        bits[(bits & 0x7F) == 0x7F] = 0  # NaN
        scale *= magnitude / 130
        scales = random_scales(make, scale, k // group) if group else scale
        wide = scales.double().view(rows, -1).repeat_interleave(group or k, 1)
        matrix = pack_fp8(bits, scales, make.dtype)
        return matrix, bits.view(torch.float8_e4m3fn).double() * wide
    if scheme == "MXFP4":
        elements = make.integers(0, 16, rows, k, dtype=torch.uint8)
        shape = rows, k // group
        low = round(math.log2(magnitude / 3)) + 127  # elements are about 3
        stored = make.integers(low - 2, low + 3, *shape, dtype=torch.uint8)
        larger = stored[rows // 2].int() + round(math.log2(uneven))
        stored[rows // 2] = larger.clamp(max=LARGEST_MXFP4_SCALE).byte()
        table = torch.tensor(E2M1, dtype=torch.float64, device=elements.device)
        powers = 2.0 ** (stored.double() - 127)
        exact = table[elements.long()] * powers.repeat_interleave(group, 1)
        return pack_mxfp4(elements[:, 0::2] | elements[:, 1::2] << 4, stored, make.dtype), exact
    if scheme == "NVFP4":
        elements = make.integers(0, 16, rows, k, dtype=torch.uint8)
        stored = make.integers(0, 256, rows, k // group, dtype=torch.uint8)
        stored[(stored & 127) == 127] = 0  # NaN
        scale *= magnitude / 300
        table = torch.tensor(E2M1, dtype=torch.float64, device=elements.device)
        wide = stored.view(torch.float8_e4m3fn).double().repeat_interleave(group, 1)
        exact = table[elements.long()] * wide * scale.double().unsqueeze(1)
        values = elements[:, 0::2] | elements[:, 1::2] << 4
        return pack_nvfp4(values, stored, scale, make.dtype), exact
    bits = 8 if scheme == "INT8" else 4
    quantized = make.integers(0, 2**bits, rows, k, dtype=torch.uint8)
    groups = k // group
    scales = random_scales(make, scale * (magnitude / 2 ** (bits - 2)), groups)
    zeros = make.integers(0, 2**bits, rows, groups).float()
    wide = [t.repeat_interleave(group, 1).double() for t in (scales, zeros)]
    weights = (quantized.double() - wide[1]) * wide[0]
    if scheme == "INT8":
        return pack_int8_groups(quantized, scales, zeros, make.dtype), weights
    values = (quantized[:, 0::2] | quantized[:, 1::2] << 4).contiguous()
    return pack_int4(values, scales, zeros, make.dtype), weights


def random_scales(make: Inputs, row_scale: Tensor, groups: int) -> Tensor:
    """Return scales of about `row_scale` fp32 [rows], of both signs, [rows, groups]; one is 0.

    They have 8 bits, like bfloat16's, and are not so small that packing rounds them.
    """
    scales = make.normal(len(row_scale), groups, dtype=torch.bfloat16).float()
    scales = torch.where(scales < 0, -1, 1) * scales.abs().clamp_(2.0**-9)
    scales = (scales * row_scale.bfloat16().float().unsqueeze(1)).bfloat16().float()
    scales[0, groups // 2] = 0
    return scales


def parts(matrix: PackedMatrix) -> tuple[Tensor, Tensor]:
    """Return values [rows, columns] and groups' parts fp16 [rows, groups, parts].

    Includes the padding. Decodes tiles as documented: 64 bytes of values of each of eight rows,
    then for each group the parts of each row: a scale and, but for FP8, a negated zero point.
    """
    columns_each = PACKED_SCHEMES[matrix.scheme].tile_columns
    num_tiles, groups = -(-matrix.shape[1] // columns_each), columns_each // matrix.group_size
    quantized = torch.full((len(matrix), num_tiles * columns_each), -1000)
    entry = 2 if matrix.scheme == "FP8" else 4  # bytes
    shape = len(matrix), num_tiles * groups, entry // 2
    table = torch.full(shape, float("nan"), dtype=torch.float16)
    to_column_order = nibbles_to_column_order if matrix.scheme == "INT4" else bytes_to_column_order
    for row in range(len(matrix)):
        block = matrix.tiles[row // 8].view(num_tiles, 8 * (64 + entry * groups))
        for index in range(num_tiles):
            tile = block[index]
            own = to_column_order(tile[row % 8 * 64 :][:64])
            quantized[row, index * columns_each :][:columns_each] = own
            for group in range(groups):
                at = 512 + entry * (8 * group + row % 8)
                own_parts = tile[at : at + entry].clone().view(torch.float16)
                table[row, index * groups + group] = own_parts
    return quantized, table


def nibbles_to_column_order(values: Tensor) -> Tensor:
    """Return 128 int4 values in column order.

    Word p of thread t has the columns 32p + 8t …: column i in the low half of byte i, column i + 4
    in its high half.
    """
    found = torch.full((128,), -1)
    for t in range(4):
        for p in range(4):
            for i in range(8):
                byte = int(values[16 * t + 4 * p + i % 4])
                found[32 * p + 8 * t + i] = byte >> i // 4 * 4 & 15
    return found


def bytes_to_column_order(values: Tensor) -> Tensor:
    """Return 64 grouped int8 values in column order.

    The p-th eight bytes of thread t are the columns 32p + 8t …
    """
    found = torch.full((64,), -1000)
    for t in range(4):
        for p in range(2):
            found[32 * p + 8 * t :][:8] = values.view(torch.int8)[16 * t + 8 * p :][:8]
    return found
