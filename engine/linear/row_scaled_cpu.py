"""Weights of 8 bits with one scale for each row, on the CPU: int8 and fp8 (e4m3).

`docs/notes/packed-layouts.md` has a picture of each packed layout.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.linear.tiles import concatenated, tile_rows
from swiftchat.engine.linear.torch_private import matmul_int8_cpu
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.weights.quantization.scheme import Float8, Int8

_MAX_ROWS_PACKED = 16  # where torch's int8 operator is the faster; measured with SmolLM2's shapes


@dataclass(frozen=True)
class RowScaledWeight(LinearWeight):
    """weight[r, c] = scale[r] * values[r, c], one byte a value.

    `values` int8 [rows, columns], as stored in the file; `scale` fp32 [rows].
    """

    values: Tensor
    scale: Tensor
    activation_dtype: torch.dtype

    @classmethod
    def from_parts(cls, parts: Sequence[Int8 | Float8], dtype: torch.dtype) -> Self:
        """Stack the parts; `values` is a view of the file if there is one part."""
        values = np.ascontiguousarray(concatenated([part.values for part in parts]))
        scale = np.concatenate([part.scale for part in parts])
        return cls(torch.from_numpy(values).view(torch.int8), torch.from_numpy(scale), dtype)

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.activation_dtype

    @property
    def tensors(self) -> list[Tensor]:
        return [self.values, self.scale]

    @abstractmethod
    def _to_float(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the values of some rows in `dtype`, without the scale."""

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        tiles = torch.split(self.values, tile_rows(self.shape))
        out = torch.cat([_matmul_tile(x, self._to_float(tile, x.dtype)) for tile in tiles], 1)
        out = (out.float() * self.scale).to(x.dtype)
        return out if bias is None else out + bias


class Int8Weight(RowScaledWeight):
    """Integers from -128 to 127."""

    def _to_float(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        return values.to(dtype)

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        if x.dtype != torch.bfloat16 or len(x) > _MAX_ROWS_PACKED:
            return super().matmul(x, bias)
        out = matmul_int8_cpu(x, self.values, self.scale.to(x.dtype))
        return out if bias is None else out + bias

    def is_traceable(self, dtype: torch.dtype) -> bool:
        return dtype == torch.bfloat16


class Float8Weight(RowScaledWeight):
    """e4m3 numbers; `values` are their bits."""

    def _to_float(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        return e4m3_to_bfloat16(values).to(dtype)


def e4m3_to_bfloat16(bits: Tensor) -> Tensor:
    """Convert e4m3 numbers, given as int8 bits, to bfloat16, exactly; NaNs are not supported.

    Exponent and fraction shifted to bfloat16's position are the same numbers times 2^-120, also
    subnormal ones. Torch's own conversion takes three times as long.
    """
    shifted = bits.to(torch.int16).bitwise_left_shift_(4).bitwise_and_(-0x7810)
    return shifted.view(torch.bfloat16).mul_(2.0**120)


def _matmul_tile(x: Tensor, tile: Tensor) -> Tensor:
    return torch.mv(tile, x[0]).unsqueeze(0) if len(x) == 1 else F.linear(x, tile)
