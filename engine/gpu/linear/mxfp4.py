"""MXFP4 matrices on a GPU, as the file has them."""

from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.cuda.ops.moe.mxfp4 import GROUP, mxfp4_dequantize
from swiftchat.engine.gpu.linear.plain import LinearKernels
from swiftchat.engine.linear.weight import LinearWeight


@dataclass(frozen=True)
class Mxfp4Weight(LinearWeight):
    """A matrix [rows, columns]: `blocks` uint8 [rows, groups, 16], `scales` uint8 [rows, groups].

    `matmul` dequantizes it, for prefill; `engine.gpu.moe` computes a few rows with it as it
    is.
    """

    blocks: Tensor
    scales: Tensor
    activation_dtype: torch.dtype
    kernels: LinearKernels

    @property
    def shape(self) -> tuple[int, int]:
        rows, groups = self.scales.shape
        return rows, groups * GROUP

    @property
    def dtype(self) -> torch.dtype:
        return self.activation_dtype

    @property
    def description(self) -> str:
        return "mxfp4, CUDA kernels"

    @property
    def tensors(self) -> list[Tensor]:
        return [self.blocks, self.scales]

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        plain = x.new_empty(self.shape)
        mxfp4_dequantize(self.kernels.gpu, self.blocks, self.scales, plain)
        return F.linear(x, plain, bias)

    def reordered(self, order: Tensor) -> Self:
        order = order.to(self.blocks.device)
        return replace(self, blocks=self.blocks[order], scales=self.scales[order])
