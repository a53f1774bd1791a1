"""W8A8: weights whose activations are quantized to 8 bits before the matmul.

SmoothQuant, Xiao et al., 2022 (arXiv:2211.10438), and "FP8 Formats for Deep Learning",
Micikevicius et al., 2022. Every row of activations is quantized by itself, so the result for a
token does not depend on the other tokens of the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from swiftchat.engine.linear.weight import LinearWeight, WrappedWeight
from swiftchat.weights.quantization.scheme import ActivationQuantization
from swiftchat.weights.quantization.stored_tensor import StoredTensor


@dataclass(frozen=True)
class W8A8Weight(WrappedWeight):
    """`weight`, multiplied with activations that are quantized by `scheme`."""

    scheme: ActivationQuantization

    @property
    def description(self) -> str:
        return f"{self.weight.description}, activations in {self.scheme.dtype}"

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return self.weight.matmul_w8a8(x, self.scheme, bias)

    def reordered(self, order: Tensor) -> LinearWeight:
        return W8A8Weight(self.weight.reordered(order), self.scheme)


def activation_scheme(parts: Sequence[StoredTensor | None]) -> ActivationQuantization | None:
    """Return the scheme for the activations of matrices that are merged into one weight.

    None unless all of them have one of the same kind. The result has the largest of several static
    scales; scales that were calibrated with the same activations are equal.
    """
    schemes = [None if part is None else part.activations for part in parts]
    given = [scheme for scheme in schemes if scheme is not None]
    if len(given) < len(schemes) or len({(s.dtype, s.scale is None) for s in given}) != 1:
        return None
    scales = [scheme.scale for scheme in given if scheme.scale is not None]
    return ActivationQuantization(given[0].dtype, max(scales, default=None))
