"""Random packed matrices, with the numbers they stand for in fp64."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from swiftchat.cuda.packed_matrix import (
    PackedMatrix,
    pack_fp8,
    pack_int4,
    pack_int8,
    pack_int8_groups,
)
from swiftchat.engine.linear.plain_gpu import LinearKernels
from tests.support.kernel_case import Inputs

FORMS = [("INT8", 0), ("FP8", 0), ("INT4", 32), ("INT4", 64), ("INT4", 128), ("INT8", 32)]


def kernels_without_gpu() -> LinearKernels:
    """Kernels for tests of packed layouts on the CPU, which multiply nothing."""
    kernels: Any = SimpleNamespace(gpu=SimpleNamespace(device=torch.device("cpu")))
    return kernels


def packed(
    make: Inputs,
    form: str,
    group: int,
    rows: int,
    k: int,
    *,
    magnitude: float = 1.0,
    uneven: float = 1.0,
) -> tuple[PackedMatrix, Tensor]:
    """A matrix for vectors of `make.dtype`, and its weights [rows, k], of about `magnitude`.

    All codes occur; one row's weights are `uneven` times as large.
    """
    scale = make.normal(rows, dtype=torch.float32).abs() + 0.1
    scale[rows // 2] *= uneven
    if form == "INT8" and not group:
        codes = make.integers(-128, 128, rows, k, dtype=torch.int8)
        scale *= magnitude / 74
        matrix = pack_int8(codes, scale, make.dtype)
        return matrix, codes.double() * scale.double().unsqueeze(1)
    if form == "FP8":
        bits = make.integers(0, 256, rows, k, dtype=torch.uint8)
        bits[(bits & 0x7F) == 0x7F] = 0  # not a number
        scale *= magnitude / 130
        matrix = pack_fp8(bits, scale, make.dtype)
        return matrix, bits.view(torch.float8_e4m3fn).double() * scale.double().unsqueeze(1)
    bits = 8 if form == "INT8" else 4
    numbers = make.integers(0, 2**bits, rows, k, dtype=torch.uint8)
    groups = k // group
    magnitude /= 2 ** (bits - 4)
    # Of 8 bits, as bfloat16 has them, none so small beside its row's largest that packing rounds
    # it; one group has no factor.
    factors = make.normal(rows, groups, dtype=torch.bfloat16).float()
    factors = torch.where(factors < 0, -1, 1) * factors.abs().clamp_(2.0**-9) * magnitude / 4
    factors = (factors * scale.bfloat16().float().unsqueeze(1)).bfloat16().float()
    factors[0, groups // 2] = 0
    zeros = make.integers(0, 2**bits, rows, groups).float()
    wide = [t.repeat_interleave(group, 1).double() for t in (factors, zeros)]
    weights = (numbers.double() - wide[1]) * wide[0]
    if form == "INT8":
        return pack_int8_groups(numbers, factors, zeros, make.dtype), weights
    codes = (numbers[:, 0::2] | numbers[:, 1::2] << 4).contiguous()
    return pack_int4(codes, factors, zeros, make.dtype), weights


def parts(matrix: PackedMatrix) -> tuple[Tensor, Tensor]:
    """Numbers [rows, columns] and table fp16 [rows, groups, 2] of a matrix in groups, filled up.

    Read as records are described: of eight rows 64 bytes of numbers each, then for each group a
    scale and an offset of each row.
    """
    columns_each = 128 if matrix.scheme == "INT4" else 64
    steps, groups = -(-matrix.shape[1] // columns_each), columns_each // matrix.group_size
    numbers = torch.full((len(matrix), steps * columns_each), -1000)
    table = torch.full((len(matrix), steps * groups, 2), float("nan"), dtype=torch.float16)
    as_described = nibbles_as_described if matrix.scheme == "INT4" else bytes_as_described
    for row in range(len(matrix)):
        block = matrix.tiles[row // 8].view(steps, 8 * (64 + 4 * groups))
        for step in range(steps):
            record = block[step]
            own = as_described(record[row % 8 * 64 :][:64])
            numbers[row, step * columns_each :][:columns_each] = own
            for group in range(groups):
                at = 512 + 32 * group + 4 * (row % 8)
                entry = record[at : at + 4].clone().view(torch.float16)
                table[row, step * groups + group] = entry
    return numbers, table


def nibbles_as_described(codes: Tensor) -> Tensor:
    """128 numbers out of int4's order: word p of thread t is 32p + 8t …, column i in the low half
    of byte i, column i + 4 in its high half."""
    found = torch.full((128,), -1)
    for t in range(4):
        for p in range(4):
            for i in range(8):
                byte = int(codes[16 * t + 4 * p + i % 4])
                found[32 * p + 8 * t + i] = byte >> i // 4 * 4 & 15
    return found


def bytes_as_described(codes: Tensor) -> Tensor:
    """64 numbers out of the order of int8 in groups: the p-th eight bytes of thread t are those of
    the columns 32p + 8t …"""
    found = torch.full((64,), -1000)
    for t in range(4):
        for p in range(2):
            found[32 * p + 8 * t :][:8] = codes.view(torch.int8)[16 * t + 8 * p :][:8]
    return found
