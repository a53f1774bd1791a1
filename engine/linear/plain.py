"""Weights of a float dtype, multiplied by torch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from swiftchat.cuda.packed_matrix import Matrix
from swiftchat.engine.linear.half_gemm import linear
from swiftchat.engine.linear.weight import LinearWeight, dtype_name


@dataclass(frozen=True)
class PlainWeight(LinearWeight):
    """A float tensor [rows, columns]; on the CPU it may be a view of a mapped file."""

    tensor: Tensor

    supports_rows: ClassVar[bool] = True

    @property
    def shape(self) -> tuple[int, int]:
        return self.tensor.shape[0], self.tensor.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    @property
    def description(self) -> str:
        return f"{dtype_name(self.dtype)}, torch"

    @property
    def tensors(self) -> list[Tensor]:
        return [self.tensor]

    @property
    def kernel_matrices(self) -> Sequence[Matrix]:
        return (self.tensor,)

    @property
    def is_quantized(self) -> bool:
        return False

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Compute one row by torch's GEMV: on the CPU its GEMM takes 1.4 times as long for bf16.

        For a transposed matrix the GEMM is the faster of the two.
        """
        weight = self.tensor
        if len(x) != 1 or not weight.is_contiguous():
            return linear(x, weight, bias)
        out = torch.mv(weight, x[0]) if bias is None else torch.addmv(bias, weight, x[0])
        return out.unsqueeze(0)

    def rows(self, ids: Tensor) -> Tensor:
        return self.tensor[ids]

    def reordered(self, order: Tensor) -> Self:
        return replace(self, tensor=self.tensor[order.to(self.tensor.device)])

    def repeated(self, times: int) -> Self:
        return replace(self, tensor=self.tensor.repeat_interleave(times, 0))

    def transposed(self, *, copy: bool) -> Self:
        view = self.tensor.t()
        return replace(self, tensor=view.contiguous() if copy else view)
