"""Plain and merged weights on a GPU: few rows go to the project's kernel, many to cuBLAS."""

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.linear.layout import linear_fits
from swiftchat.cuda.ops.linear.linear import LinearInput, Workspace, linear
from swiftchat.cuda.ops.linear.packed_gemm import GemmWorkspace
from swiftchat.engine.linear.activations import quantize_rows
from swiftchat.engine.linear.merged import MergedWeight, split_bias
from swiftchat.engine.linear.plain import PlainWeight
from swiftchat.engine.linear.weight import LinearWeight, dtype_name
from swiftchat.weights.quantization.scheme import ActivationQuantization


class LinearKernels:
    """The GPU that weights are multiplied on, with the workspace of its kernels.

    `max_rows` is the largest number of rows of a matrix whose columns the kernels split.
    """

    def __init__(self, gpu: Gpu, max_rows: int) -> None:
        self.gpu = gpu
        self.workspace = Workspace(gpu, max_rows)

    @cached_property
    def gemm_workspace(self) -> GemmWorkspace:
        """The workspace of `packed_gemm`, allocated with the first matmul that needs it."""
        return GemmWorkspace(self.gpu)


@dataclass(frozen=True)
class GpuPlainWeight(PlainWeight):
    """A float tensor [rows, columns] on a GPU."""

    kernels: LinearKernels

    @property
    def description(self) -> str:
        return f"{dtype_name(self.dtype)}, CUDA kernels"

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        gpu = self.kernels.gpu
        if not linear_fits(gpu, len(x), self.tensor):
            return F.linear(x, self.tensor, bias)
        out = x.new_empty(len(x), len(self.tensor))
        linear(gpu, LinearInput(x, bias=bias), self.tensor, out, self.kernels.workspace)
        return out

    def matmul_fp32(self, x: Tensor) -> Tensor:
        gpu = self.kernels.gpu
        if not linear_fits(gpu, len(x), self.tensor):
            return self.matmul(x).float()
        out = torch.empty(len(x), len(self.tensor), device=gpu.device)
        linear(gpu, LinearInput(x), self.tensor, out, self.kernels.workspace)
        return out

    def matmul_w8a8(
        self, x: Tensor, scheme: ActivationQuantization, bias: Tensor | None = None
    ) -> Tensor:
        return matmul_rounded(self, x, scheme, bias)


@dataclass(frozen=True)
class GpuMergedWeight(MergedWeight):
    """Several matrices on a GPU, each added to its own part of the bias by its kernel."""

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        biases = split_bias(bias, self.kernel_matrices)
        parts = zip(self.parts, biases, strict=True)
        return torch.cat([part.matmul(x, own) for part, own in parts], 1)

    def matmul_w8a8(
        self, x: Tensor, scheme: ActivationQuantization, bias: Tensor | None = None
    ) -> Tensor:
        return matmul_rounded(self, x, scheme, bias)


def matmul_rounded(
    weight: LinearWeight, x: Tensor, scheme: ActivationQuantization, bias: Tensor | None
) -> Tensor:
    """W8A8 without a kernel for it: quantize and dequantize x, then multiply in its dtype."""
    quantized, scales = quantize_rows(x, scheme)
    return weight.matmul((quantized * scales).to(x.dtype), bias)
