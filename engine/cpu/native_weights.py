"""Weights of linear layers for the native CPU kernels."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from swiftchat.engine.api.tile_layout import BLOCK_TYPES, float_groups_fit
from swiftchat.engine.cpu.matrices import FloatMatrix, NativeMatrix, TiledMatrix, first_rows
from swiftchat.engine.cpu.native import Matrix
from swiftchat.engine.cpu.pack import Packer
from swiftchat.engine.cpu.program import Pool
from swiftchat.engine.cpu.recorded_activations import CannotRecordError
from swiftchat.engine.cpu.single_op import matmul, table_rows
from swiftchat.engine.linear.merged import MergedWeight
from swiftchat.engine.linear.plain import PlainWeight
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.weights.quantization.scheme import Float8, GgufBlocks, QuantizedMatrix


@dataclass(frozen=True)
class NativeWeight(LinearWeight):
    """`matrices` one below the other, each in a format of its own, for activations of one dtype.

    The kernels multiply quantized matrices with bfloat16 and float16 activations as 16-bit
    integers; everything else is computed in fp32.
    """

    pool: Pool
    packer: Packer
    matrices: tuple[NativeMatrix, ...]
    activation_dtype: torch.dtype

    supports_rows: ClassVar[bool] = True

    @property
    def native_matrices(self) -> Sequence[Matrix]:
        """The matrices for programs, valid as long as this weight exists."""
        return [matrix.struct for matrix in self.matrices]

    @property
    def shape(self) -> tuple[int, int]:
        return first_rows(self.matrices)[-1], self.matrices[0].cols

    @property
    def dtype(self) -> torch.dtype:
        return self.activation_dtype

    @property
    def description(self) -> str:
        formats = dict.fromkeys(matrix.description for matrix in self.matrices)
        return f"{' + '.join(formats)}, native kernels"

    @property
    def tensors(self) -> list[Tensor]:
        return [tensor for matrix in self.matrices for tensor in matrix.tensors]

    @property
    def is_quantized(self) -> bool:
        return any(
            isinstance(matrix, TiledMatrix) or matrix.tensor.dtype == torch.uint8
            for matrix in self.matrices
        )

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        out = self.matmul_fp32(x)
        return (out if bias is None else out + bias).to(x.dtype)

    def matmul_fp32(self, x: Tensor) -> Tensor:
        exact = self.activation_dtype == torch.float32
        return matmul(self.pool, self.native_matrices, x, exact=exact)

    def rows(self, ids: Tensor) -> Tensor:
        firsts = first_rows(self.matrices)
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < firsts[-1]:
            raise IndexError(f"a table of {firsts[-1]} rows does not have all of these")
        if len(self.matrices) == 1:
            return table_rows(self.pool, self.matrices[0].struct, ids).to(self.dtype)
        out = torch.empty(len(ids), self.shape[1], dtype=self.dtype)
        for matrix, (first, end) in zip(self.matrices, pairwise(firsts), strict=True):
            own = torch.nonzero((ids >= first) & (ids < end)).squeeze(1)
            out[own] = table_rows(self.pool, matrix.struct, ids[own] - first).to(self.dtype)
        return out

    def reordered(self, order: Tensor) -> "NativeWeight":
        """Reorder the rows of every matrix; raises `ValueError` if a row changes its matrix."""
        firsts = first_rows(self.matrices)
        moved: list[NativeMatrix] = []
        for matrix, (first, end) in zip(self.matrices, pairwise(firsts), strict=True):
            own = order[first:end] - first
            if own.min() < 0 or own.max() >= matrix.rows:
                raise ValueError("a new order moves rows between the matrices of a weight")
            if isinstance(matrix, TiledMatrix):
                moved.append(self.packer.reordered(matrix, own))
            else:
                moved.append(matrix.reordered(own))
        return replace(self, matrices=tuple(moved))

    def repeated(self, times: int) -> LinearWeight:
        if self.is_quantized or len(self.matrices) != 1:
            return super().repeated(times)
        (tensor,) = self.tensors
        return replace(self, matrices=(FloatMatrix(tensor.repeat_interleave(times, 0)),))

    def transposed(self, *, copy: bool) -> LinearWeight:
        """Return a contiguous copy in any case: the kernels read rows."""
        if self.is_quantized or len(self.matrices) != 1:
            return super().transposed(copy=copy)
        (tensor,) = self.tensors
        return replace(self, matrices=(FloatMatrix(tensor.t().contiguous()),))


class NativeWeights:
    """Weights for the native kernels; quantized matrices are packed into memory in large pages."""

    keeps_quantized = True
    quantizes_activations = False  # activations of 16 bits take no more time than those of 8
    block_types: Collection[str] = BLOCK_TYPES

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._packer = Packer(pool.library, pool.num_threads)

    @property
    def blocks(self) -> Self:
        return self

    def of(self, name: str) -> Self:
        return self

    def plain(self, tensor: Tensor) -> LinearWeight:
        contiguous = tensor if tensor.stride(1) == 1 else tensor.contiguous()
        return self._weight([FloatMatrix(contiguous)], tensor.dtype)

    def quantized(
        self, parts: Sequence[QuantizedMatrix], dtype: torch.dtype
    ) -> LinearWeight | None:
        matrices: list[NativeMatrix] = []
        for float_groups, some in groupby(parts, _float_groups):
            packed: Sequence[NativeMatrix] | None
            if float_groups:
                packed = _float8_matrices([part for part in some if isinstance(part, Float8)])
            else:
                packed = self._packer.pack(
                    [part for part in some if not isinstance(part, Float8)],
                    exact=dtype == torch.float32,
                )
            if packed is None:
                return None
            matrices += packed
        return self._weight(matrices, dtype)

    def from_blocks(
        self, parts: Sequence[GgufBlocks], dtype: torch.dtype, on_packed: Callable[[], None]
    ) -> LinearWeight:
        matrices = self._packer.pack_blocks(parts, on_packed=on_packed)
        return self._weight(matrices, dtype)

    def merged(self, parts: Sequence[LinearWeight]) -> LinearWeight:
        native = [part for part in parts if isinstance(part, NativeWeight)]
        if len(native) < len(parts):
            return MergedWeight(parts)
        return self._weight([matrix for part in native for matrix in part.matrices], parts[0].dtype)

    def _weight(self, matrices: Sequence[NativeMatrix], dtype: torch.dtype) -> NativeWeight:
        return NativeWeight(self._pool, self._packer, tuple(matrices), dtype)


def _float_groups(part: QuantizedMatrix) -> int:
    """Return how many scales a row of 8-bit floats has; 0: the values are integers."""
    return part.scale.shape[1] if isinstance(part, Float8) else 0


def _float8_matrices(parts: Sequence[Float8]) -> list[FloatMatrix] | None:
    """Join parts with as many groups; None: the kernels do not read these.

    The values of a single part are not copied.
    """
    arrays = [part.values for part in parts]
    scale = torch.from_numpy(np.concatenate([part.scale for part in parts]))
    columns, groups = arrays[0].shape[1], scale.shape[1]
    if not float_groups_fit(columns // groups, columns):
        return None
    values = torch.from_numpy(arrays[0] if len(arrays) == 1 else np.concatenate(arrays))
    if values.stride(1) != 1:
        values = values.contiguous()
    if groups == 1:
        return [FloatMatrix(values, row_scale=scale[:, 0].contiguous())]
    return [FloatMatrix(values, group_scale=scale)]


def native_matrices(weight: LinearWeight) -> Sequence[Matrix]:
    """Return the parts of a weight for the kernels; raises `CannotRecordError`."""
    if isinstance(weight, MergedWeight):
        return [matrix for part in weight.parts for matrix in native_matrices(part)]
    if isinstance(weight, PlainWeight) and weight.tensor.stride(1) == 1:
        return [FloatMatrix(weight.tensor).struct]
    if isinstance(weight, NativeWeight):
        return weight.native_matrices
    raise CannotRecordError(f"no kernel multiplies with {type(weight).__name__}")
