"""Matrices whose inputs are rounded to 8 bits before the product (W8A8).

SmoothQuant, Xiao et al., 2022 (arXiv:2211.10438), and "FP8 Formats for Deep Learning",
Micikevicius et al., 2022. Every vector is rounded by itself, so what a token becomes does not
depend on the others that are computed with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from swiftchat.engine.linear import merged
from swiftchat.engine.linear.plain import linear
from swiftchat.engine.linear.quantized import Weight, tensors_of
from swiftchat.weights.quantization.scheme import ActivationQuantization
from swiftchat.weights.quantization.stored_tensor import StoredTensor

# What a vector's largest number becomes; the package compressed-tensors divides int8's whole
# range by two, and its upper end is then cut off by half a step.
LARGEST: Mapping[str, float] = MappingProxyType({"int8": 127.5, "fp8": 448.0})
_SMALLEST_FACTOR = 2.0**-100  # by which a vector of zeros can be divided
# Codes are multiplied with as this many times smaller numbers: fp16 holds their sums then. Exact
# in every dtype.
_SHIFT = 256.0


@dataclass(frozen=True)
class W8A8Weight:
    """`weight`, multiplied with what `rounding` makes of its inputs; a `QuantizedWeight` itself."""

    weight: Weight
    rounding: ActivationQuantization

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.shape[0], self.weight.shape[1]

    @property
    def tensors(self) -> list[Tensor]:
        return tensors_of(self.weight)

    def product(self, x: Tensor) -> Tensor:
        codes, factors = rounded(x, self.rounding)
        product = linear((codes / _SHIFT).to(x.dtype), self.weight)
        return (product.float() * (factors * _SHIFT)).to(x.dtype)


def rounded(x: Tensor, rounding: ActivationQuantization) -> tuple[Tensor, Tensor]:
    """x [n, k] as whole or e4m3 numbers in fp32 [n, k], and what each row is times: fp32 [n, 1].

    Rounded to the nearest, ties to even; what is beyond the largest becomes it. A row with a
    number that is not finite has products that are not numbers.
    """
    wide = x.float()
    if rounding.scale is None:
        factors = wide.abs().amax(1, keepdim=True).div_(LARGEST[rounding.dtype])
        factors.clamp_(min=_SMALLEST_FACTOR)
    else:
        factors = wide.new_full((len(x), 1), rounding.scale)
    scaled = wide / factors
    if rounding.dtype == "int8":
        return scaled.clamp_(-128, 127).round_(), factors
    return scaled.clamp_(-448, 448).to(torch.float8_e4m3fn).float(), factors


def rounding_of(parts: Sequence[StoredTensor | None]) -> ActivationQuantization | None:
    """What is done to the inputs of these matrices, which one product reads together.

    None where they do not all have it done; of several fixed factors the largest, which they
    share anyway where they were found by what goes into them.
    """
    found = [None if part is None else part.activations for part in parts]
    given = [rounding for rounding in found if rounding is not None]
    if len(given) < len(found) or len({(r.dtype, r.scale is None) for r in given}) != 1:
        return None
    scales = [rounding.scale for rounding in given if rounding.scale is not None]
    return ActivationQuantization(given[0].dtype, max(scales, default=None))


def matrix_of(weight: Weight) -> Weight:
    """The matrix itself, whatever is done to its inputs."""
    return weight.weight if isinstance(weight, W8A8Weight) else weight


def reordered(weight: Weight, index: Tensor) -> Weight:
    """The rows of `weight` that `index` names, as `merged.reordered`."""
    if isinstance(weight, W8A8Weight):
        return W8A8Weight(merged.reordered(weight.weight, index), weight.rounding)
    return merged.reordered(weight, index)
