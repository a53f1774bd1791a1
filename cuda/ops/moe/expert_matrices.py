"""The matrices of a layer's experts, as kernels read them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from swiftchat.cuda.packed_layout import has_row_scales, packed_bytes, packing_fits
from swiftchat.cuda.signature import Macro

ACTIVATIONS = ("silu", "gelu_tanh", "gelu_sigmoid")  # of experts' gates


@dataclass(frozen=True)
class ExpertMatrices:
    """The matrices [rows, columns] of a layer's experts: addresses int64 [num_experts].

    `scheme` is PLAIN (`values` are matrices T) or that of a `PackedMatrix` (`values` and `scales`
    are its tiles and row scales). `biases` are T [rows].

    The last `num_shared` experts are parts of one, whose size is the sum of theirs: their addresses
    are those of their first gate row, or of their first column of the output matrix.

    Raises `ValueError` for a scheme with row scales without them, and for others with them.
    """

    scheme: str
    rows: int
    columns: int
    values: Tensor
    scales: Tensor | None = None
    biases: Tensor | None = None
    group_size: int = 0
    num_shared: int = 0

    def __post_init__(self) -> None:
        if (self.scales is not None) != has_row_scales(self.scheme):
            raise ValueError(f"{self.scheme} matrices with scales {self.scales}")

    def check_shape(self, rows: int, columns: int) -> None:
        """Raise `ValueError` unless the matrices are [rows, columns]."""
        if (self.rows, self.columns) != (rows, columns):
            found = (self.rows, self.columns)
            raise ValueError(f"matrices must be {(rows, columns)}, not {found}")

    def quantized_fit(self, dtype: torch.dtype) -> bool:
        """Return whether kernels read these quantized matrices for activations of `dtype`."""
        return dtype.itemsize == 2 and packing_fits(self.scheme, self.columns, self.group_size)

    def matrix_bytes(self, itemsize: int) -> int:
        """Return the bytes of a matrix, whose elements have `itemsize` bytes if it is PLAIN."""
        if self.scheme == "PLAIN":
            return self.rows * self.columns * itemsize
        return packed_bytes(self.scheme, self.rows, self.columns, self.group_size)

    def shared_arguments(self, expert_size: int) -> dict[str, int]:
        """Return the kernels' arguments about the parts of a shared expert."""
        num_routed = len(self.values) - self.num_shared
        return {"num_routed": num_routed, "shared_size": self.num_shared * expert_size}

    @property
    def arguments(self) -> dict[str, Any]:
        return {"values": self.values, "scales": self.scales, "biases": self.biases}

    @property
    def macros(self) -> dict[str, Macro]:
        return {"SCHEME": self.scheme, "GROUP_SIZE": self.group_size}
