"""The matrices of a layer's experts, as kernels read them."""

from dataclasses import dataclass

from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import Gpu


@dataclass(frozen=True)
class ExpertMatrices:
    """The matrices [rows, columns] of a layer's experts: addresses int64 [num_experts].

    `scheme` is PLAIN (`values` are matrices T), MXFP4 (`values` uint8 [rows, columns / 2], `scales`
    uint8 [rows, columns / 32]), or INT8, FP8 or INT4 (`values` and `scales` are the tiles and row
    scales of a `PackedMatrix`). `biases` are T [rows].
    """

    scheme: str
    rows: int
    columns: int
    values: Tensor
    scales: Tensor | None = None
    biases: Tensor | None = None
    group_size: int = 0

    def check(self, gpu: Gpu) -> None:
        """Raise `ValueError` for wrong tensors; the addresses themselves are not checked."""
        shape = (len(self.values),)
        check_tensor("values", self.values, shape, "int64", gpu)
        check_tensor("scales", self.scales, shape, "int64", gpu)
        check_tensor("biases", self.biases, shape, "int64", gpu)
        if (self.scales is None) != (self.scheme == "PLAIN"):
            raise ValueError(f"{self.scheme} matrices with scales {self.scales}")
