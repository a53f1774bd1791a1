"""Random packed matrices, with the numbers they stand for in fp64."""

import torch
from kernel_case import Inputs
from torch import Tensor

from swiftchat.cuda.packed_matrix import (
    PackedMatrix,
    packed_fp8,
    packed_int4,
    packed_int8,
    packed_int8_groups,
)

FORMS = [("INT8", 0), ("FP8", 0), ("INT4", 32), ("INT4", 64), ("INT4", 128), ("INT8", 32)]


def packed(make: Inputs, form: str, group: int, rows: int, k: int, *,
           magnitude: float = 1.0, uneven: float = 1.0) -> tuple[PackedMatrix, Tensor]:  # fmt: skip
    """A matrix for vectors of `make.dtype`, and its weights [rows, k], of about `magnitude`.

    All codes occur; one row's weights are `uneven` times as large.
    """
    scale = make.normal(rows, dtype=torch.float32).abs() + 0.1
    scale[rows // 2] *= uneven
    if form == "INT8" and not group:
        codes = make.integers(-128, 128, rows, k, dtype=torch.int8)
        scale *= magnitude / 74
        matrix = packed_int8(codes, scale, make.dtype)
        return matrix, codes.double() * scale.double().unsqueeze(1)
    if form == "FP8":
        bits = make.integers(0, 256, rows, k, dtype=torch.uint8)
        bits[(bits & 0x7F) == 0x7F] = 0  # not a number
        scale *= magnitude / 130
        matrix = packed_fp8(bits, scale, make.dtype)
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
        return packed_int8_groups(numbers, factors, zeros, make.dtype), weights
    codes = (numbers[:, 0::2] | numbers[:, 1::2] << 4).contiguous()
    return packed_int4(codes, factors, zeros, make.dtype), weights


def parts(matrix: PackedMatrix) -> tuple[Tensor, Tensor]:
    """Numbers [rows, columns], INT4's less 8, and table fp16 [rows, entries, 2] of a matrix in
    groups, where rows are as described: of each 1024 bytes of codes those, then their entries,
    filled up to whole 16 bytes; columns are filled up to whole 64 bytes of codes."""
    in_byte = 2 if matrix.form == "INT4" else 1
    columns = -(-matrix.shape[1] // (64 * in_byte)) * 64 * in_byte
    codes, entries, at = [], [], 0
    for column in range(0, columns, 1024 * in_byte):
        width = min(1024 * in_byte, columns - column)
        for to, size in ((codes, width // in_byte), (entries, -(-width // matrix.group // 4) * 16)):
            to.append(matrix.codes[:, at : at + size])
            at += size
    assert at == matrix.codes.shape[1]
    table = torch.cat(entries, 1).view(torch.float16).unflatten(1, (-1, 2))
    together = torch.cat(codes, 1)
    if matrix.form == "INT4":
        return columns_as_described(together) - 8, table
    return bytes_as_described(together), table


def columns_as_described(codes: Tensor) -> Tensor:
    """Numbers [rows, k] out of int4's order: of 128 columns, word p of thread t is 32p + 8t …,
    column 2i in the bits 4i and column 2i + 1 in the bits 16 + 4i."""
    rows, words = len(codes), codes.contiguous().view(torch.int32)
    found = torch.full((rows, 2 * codes.shape[1]), -1)
    for step in range(words.shape[1] // 16):
        for t in range(4):
            for p in range(4):
                word = words[:, 16 * step + 4 * t + p]
                for i in range(8):
                    at = i // 2 * 4 + i % 2 * 16
                    found[:, 128 * step + 32 * p + 8 * t + i] = word >> at & 15
    return found


def bytes_as_described(codes: Tensor) -> Tensor:
    """Numbers [rows, k] out of the order of int8 in groups: of 64 columns the p-th eight bytes of
    thread t are 32p + 8t …"""
    found = torch.full(codes.shape, -1000)
    for step in range(codes.shape[1] // 64):
        for t in range(4):
            for p in range(2):
                eight = codes.view(torch.int8)[:, 64 * step + 16 * t + 8 * p :][:, :8]
                found[:, 64 * step + 32 * p + 8 * t :][:, :8] = eight
    return found
