"""Weights of 8 bits with one scale for each row, on the CPU: int8 and fp8 (e4m3).

`docs/notes/packed-layouts.md` has a picture of each packed layout.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from swiftchat.engine.linear.half_gemm import has_fast_gemm, matmul_tiles
from swiftchat.engine.linear.tiles import concatenated, tile_rows
from swiftchat.engine.linear.torch_private import matmul_int8_cpu
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.weights.quantization.scheme import Float8, Int8

# Up to here torch's int8 operator is faster than a fast bf16 GEMM and than fp32 tiles; measured
# with SmolLM2's shapes.
_MAX_ROWS_PACKED, _MAX_ROWS_PACKED_FP32 = 16, 24


@dataclass(frozen=True)
class RowScaledWeight(LinearWeight):
    """weight[r, c] = scale[r] * values[r, c], one byte a value.

    `values` int8 [rows, columns], as stored in the file; `scale` fp32 [rows].
    """

    values: Tensor
    scale: Tensor
    activation_dtype: torch.dtype

    value_format: ClassVar[str]

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
    def description(self) -> str:
        return f"{self.value_format} with row scales, torch"

    @property
    def tensors(self) -> list[Tensor]:
        return [self.values, self.scale]

    @abstractmethod
    def _numbers(self, values: Tensor) -> Tensor:
        """Return the values of some rows as numbers, without the scale."""

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        def tile(rows: slice) -> Tensor:
            return self._numbers(self.values[rows])

        return matmul_tiles(x, self.shape[0], tile_rows(self.shape), tile, self.scale, bias)


class Int8Weight(RowScaledWeight):
    """Integers from -128 to 127."""

    value_format = "int8"

    def _numbers(self, values: Tensor) -> Tensor:
        return values

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        max_rows = _MAX_ROWS_PACKED if has_fast_gemm(x.dtype) else _MAX_ROWS_PACKED_FP32
        if x.dtype != torch.bfloat16 or len(x) > max_rows:
            return super().matmul(x, bias)
        out = matmul_int8_cpu(x, self.values, self.scale.to(x.dtype))
        return out if bias is None else out + bias


class Float8Weight(RowScaledWeight):
    """e4m3 numbers; `values` are their bits."""

    value_format = "fp8"

    def _numbers(self, values: Tensor) -> Tensor:
        return e4m3_to_bfloat16(values)


def e4m3_to_bfloat16(bits: Tensor) -> Tensor:
    """Convert e4m3 numbers, given as int8 bits, to bfloat16, exactly; NaNs are not supported.

    Exponent and fraction shifted to bfloat16's position are the same numbers times 2^-120, also
    subnormal ones. Torch's own conversion takes three times as long.
    """
    shifted = bits.to(torch.int16).bitwise_left_shift_(4).bitwise_and_(-0x7810)
    return shifted.view(torch.bfloat16).mul_(2.0**120)
