"""The interface of the weight matrices of linear layers."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from swiftchat.cuda.packed_matrix import Matrix
from swiftchat.engine.linear.activations import quantize_rows
from swiftchat.errors import DeviceError
from swiftchat.weights.quantization.scheme import ActivationQuantization

# W8A8 multiplies with quantized activations divided by this power of two, which is exact in every
# dtype: fp16 can then hold their sums.
_SHIFT = 256.0


def dtype_name(dtype: torch.dtype) -> str:
    """Return `bfloat16` for `torch.bfloat16`."""
    return str(dtype).removeprefix("torch.")


class LinearWeight(Protocol):
    """A matrix [rows, columns], outputs by inputs, in any format on any device.

    A new format is one class that implements the abstract methods, overrides
    the defaults that it can do better, and has an entry in `engine.linear.factory`.
    """

    supports_rows: ClassVar[bool] = False  # whether it can be a table of embeddings

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]: ...

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The dtype of the activations that it was made for."""

    @property
    @abstractmethod
    def description(self) -> str:
        """What it is in memory and what multiplies with it: "bfloat16, torch"."""

    @property
    @abstractmethod
    def tensors(self) -> list[Tensor]:
        """Every tensor that holds a part of the matrix."""

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def kernel_matrices(self) -> Sequence[Matrix]:
        """The matrices that GPU kernels read, one launch each, from the first row to the last.

        Empty if the fused decode kernels cannot compute with this weight.
        """
        return ()

    @property
    def is_quantized(self) -> bool:
        return True

    @abstractmethod
    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return x [n, columns] times the matrix transposed, plus bias [rows]: [n, rows].

        The result has the dtype of x.
        """

    def matmul_fp32(self, x: Tensor) -> Tensor:
        """Return `matmul` in fp32, rounded to the dtype of x only if the kernel rounds."""
        return self.matmul(x).float()

    def matmul_w8a8(
        self, x: Tensor, scheme: ActivationQuantization, bias: Tensor | None = None
    ) -> Tensor:
        """Return `matmul` with every row of x quantized to 8 bits by `scheme`."""
        quantized, scales = quantize_rows(x, scheme)
        out = self.matmul((quantized / _SHIFT).to(x.dtype))
        out = (out.float() * (scales * _SHIFT)).to(x.dtype)
        return out if bias is None else out + bias

    def rows(self, ids: Tensor) -> Tensor:
        """Return the rows `ids` [n] as [n, columns], in `dtype` or in fp32.

        Raises `DeviceError` for a weight that cannot be a table of embeddings.
        """
        raise DeviceError(f"a {type(self).__name__} cannot look up rows")

    def reordered(self, order: Tensor) -> "LinearWeight":
        """Return a weight whose row i is row `order[i]` of this one."""
        return ReorderedWeight(self, order)

    def repeated(self, times: int) -> "LinearWeight":
        """Return a weight with each row `times` times, one below the other."""
        raise DeviceError(f"the rows of a {type(self).__name__} cannot be repeated")

    def transposed(self, *, copy: bool) -> "LinearWeight":
        """Return the matrix with rows and columns exchanged, contiguous if `copy`, else a view."""
        raise DeviceError(f"a {type(self).__name__} cannot be transposed")


@dataclass(frozen=True)
class WrappedWeight(LinearWeight):
    """The base of weights that hold another one and change its matmul."""

    weight: LinearWeight

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.weight.dtype

    @property
    def description(self) -> str:
        return self.weight.description

    @property
    def tensors(self) -> list[Tensor]:
        return self.weight.tensors

    @property
    def is_quantized(self) -> bool:
        return self.weight.is_quantized


@dataclass(frozen=True)
class ReorderedWeight(WrappedWeight):
    """The rows `order` of a weight whose packed layout does not allow them to be moved."""

    order: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.order), self.weight.shape[1]

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        out = self.weight.matmul(x)[:, self.order]
        return out if bias is None else out + bias
