"""Random 16-bit activations for the CPU kernels, and matmuls by the rule of kernels/gemv.h."""

import ctypes
from ctypes import c_void_p
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swiftchat.engine.cpu.native import BLOCK_COLS
from tests.support.native.ops import aligned
from tests.support.native.tiles import Tiles

Array = npt.NDArray[np.generic]


class QuantizedRows(ctypes.Structure):
    """kernels/quantized_rows.h; `memory` keeps the arrays alive."""

    memory: dict[str, Tensor]
    _fields_ = (
        ("num_rows", ctypes.c_int32),
        ("blocks", ctypes.c_int32),
        *((name, c_void_p) for name in ("whole", "high", "low", "scale", "sum", "half_sum")),
    )


@dataclass(frozen=True)
class Activations:
    """Random 16-bit activations: integers [n, blocks, 32] and scales fp32 [n, blocks]."""

    integers: Tensor
    scales: Tensor

    @property
    def dequantized(self) -> Tensor:
        return (self.integers.double() * self.scales.double().unsqueeze(2)).flatten(1)


def random_activations(num_vectors: int, cols: int, seed: int = 0) -> Activations:
    generator = torch.Generator().manual_seed(seed)
    blocks = -(-cols // BLOCK_COLS)
    integers = torch.randint(-32512, 32513, (num_vectors, blocks * BLOCK_COLS), generator=generator)
    integers[:, cols:] = 0
    scales = torch.rand(num_vectors, blocks, generator=generator) / 32512
    return Activations(integers.unflatten(1, (blocks, BLOCK_COLS)), scales)


def quantized_rows(x: Activations) -> QuantizedRows:
    """Return the activations as the kernels read them.

    Rows are one block apart, with values that spoil a result that reads them.
    """
    integers = _with_block_after(x.integers, 32767).to(torch.int16)
    sums, half_sums = x.integers.sum(2), x.integers[:, :, :16].sum(2)
    arrays = {
        "whole": integers,
        "high": ((integers.int() + 128) >> 8).to(torch.int8),
        "low": integers.to(torch.int8),
        "scale": _with_block_after(x.scales, torch.nan),
        "sum": _with_block_after(sums, 1 << 24).int(),
        "half_sum": _with_block_after(half_sums, 1 << 24).int(),
    }
    memory = {name: aligned(array) for name, array in arrays.items()}
    pointers = {name: array.data_ptr() for name, array in memory.items()}
    rows = QuantizedRows(len(integers), integers.shape[1], **pointers)
    rows.memory = memory
    return rows


def _with_block_after(tensor: Tensor, filler: float) -> Tensor:
    """Append one block to each row of [n, blocks, ...]."""
    block = torch.full_like(tensor[:, :1], filler)
    return torch.cat([tensor, block], 1)


def in_order(tiles: Tiles, x: Activations) -> Tensor:
    """Compute y [n, rows] in fp32 by the rule of kernels/gemv.h."""
    matrix, cols = tiles.matrix, tiles.matrix.cols
    unit = 16 if matrix.group_cols == 16 else BLOCK_COLS
    integers, weights = x.integers.flatten(1).numpy(), tiles.quantized.numpy()
    y = np.zeros((len(integers), matrix.rows), np.float32)
    for first in range(0, cols, unit):
        part = integers[:, first : first + unit]
        isums = part[:, : cols - first] @ weights[:, first : first + unit].T
        scales = x.scales.numpy()[:, first // BLOCK_COLS, None]
        group = first // matrix.group_cols if matrix.group_cols else None
        weight_scales = np.float32(1) if group is None else tiles.scales.numpy()[:, group]
        y = _fused_multiply_add(isums.astype(np.float32) * scales, weight_scales, y)
        if matrix.has_minimum:
            sums = part.sum(1, keepdims=True).astype(np.float32)
            y = _fused_multiply_add(sums * scales, tiles.minimums.numpy()[:, group], y)
    return torch.from_numpy(y) * (tiles.tensors[1] if matrix.row_scale else 1)


def _fused_multiply_add(a: Array, b: Array, c: Array) -> Array:
    """Return a * b + c, rounded to fp32 once: through the fp64 sum, rounded to odd."""
    product, addend = a.astype(np.float64) * b, c.astype(np.float64)
    total = product + addend
    added = total - product
    error = (product - (total - added)) + (addend - added)
    bits = total.view(np.int64)
    away = np.where((error > 0) == (total > 0), 1, -1)
    bits = bits + np.where((error != 0) & (bits & 1 == 0), away, 0)
    return bits.view(np.float64).astype(np.float32)
