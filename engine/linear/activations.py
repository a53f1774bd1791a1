"""Activations quantized to 8 bits, one scale for each row."""

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from swiftchat.weights.quantization.scheme import ActivationQuantization

# The quantized value of a row's largest element. The package compressed-tensors divides by half of
# int8's whole range, 127.5, and clamps the upper end.
LARGEST: Mapping[str, float] = MappingProxyType({"int8": 127.5, "fp8": 448.0})
_SMALLEST_SCALE = 2.0**-100  # so that a row of zeros can be divided by its scale


def quantize_rows(x: Tensor, scheme: ActivationQuantization) -> tuple[Tensor, Tensor]:
    """Quantize x [n, k] to int8 or e4m3 values, kept in fp32 [n, k], with scales fp32 [n, 1].

    Values are rounded to the nearest, ties to even, and clamped. A row with an infinity or a NaN
    yields NaNs.
    """
    wide = x.float()
    if scheme.scale is None:
        scales = wide.abs().amax(1, keepdim=True).div_(LARGEST[scheme.dtype])
        scales.clamp_(min=_SMALLEST_SCALE)
    else:
        scales = wide.new_full((len(x), 1), scheme.scale)
    scaled = wide / scales
    if scheme.dtype == "int8":
        return scaled.clamp_(-128, 127).round_(), scales
    return scaled.clamp_(-448, 448).to(torch.float8_e4m3fn).float(), scales
