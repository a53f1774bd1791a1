"""Memory that the operations of a program point to."""

from typing import Any

from torch import Tensor

from swiftchat.engine.cpu.matrices import FloatMatrix
from swiftchat.engine.cpu.native import Matrix


class References:
    """The owners of memory that operations point to, which live as long as this list of them."""

    def __init__(self, *owners: Any) -> None:
        self.owners: list[Any] = [*owners]

    def keep(self, owner: Any) -> Any:
        """Return `owner`, which now lives as long as this object."""
        self.owners.append(owner)
        return owner

    def floats(self, tensor: Tensor | None) -> int | None:
        """Return the address of a tensor's elements in fp32; None for None."""
        return None if tensor is None else int(self.keep(tensor.float().contiguous()).data_ptr())

    def float_matrix(self, tensor: Tensor) -> Matrix:
        """Describe a tensor [rows, cols] of a float dtype for the kernels."""
        return FloatMatrix(self.keep(tensor.contiguous())).struct
