"""Keys and values in 8 bits: head_dim values and one scale for each token and head."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from swiftchat.engine.linear.row_scaled_cpu import e4m3_to_bfloat16

# The largest value of each scheme; a row is scaled so that its largest element becomes this.
LARGEST: Mapping[str, float] = MappingProxyType({"int8": 127.0, "fp8": 448.0})
# So that a row of zeros, or of elements near fp32's smallest, can be divided by its scale.
_SMALLEST_SCALE = 2.0**-100
_CHUNK_TOKENS = 512


@dataclass(frozen=True)
class QuantizedKV:
    """The keys and values of one layer; an element is its value times its row's scale.

    `scheme` is int8 or fp8 (e4m3). `values` are int8, for fp8 the bits, in the layout of the plain
    cache: [num_blocks, block_size, 2 * num_kv_heads, head_dim], or with the heads before the
    tokens. `scales` are fp32, without the last dimension.
    """

    scheme: str
    values: Tensor
    scales: Tensor

    def store(self, slots: Tensor, new: Tensor) -> None:
        """Write new [n, 2 * num_kv_heads, head_dim] to the slots [n]; not for heads first."""
        values, scales = quantize_kv(self.scheme, new)
        self.values.view(-1, *values.shape[1:]).index_copy_(0, slots, values)
        self.scales.view(-1, *scales.shape[1:]).index_copy_(0, slots, scales)


def quantize_kv(scheme: str, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize rows [..., head_dim] to int8 values and fp32 scales [...], rounded to the nearest.

    A row with an infinity or a NaN gets a scale that is not finite, so it stays visible.
    """
    wide = rows.float()
    scales = (wide.abs().amax(-1) / LARGEST[scheme]).clamp_(min=_SMALLEST_SCALE)
    scaled = wide / scales.unsqueeze(-1)
    if scheme == "int8":
        return scaled.round_().to(torch.int8), scales
    return scaled.to(torch.float8_e4m3fn).view(torch.int8), scales


def dequantize_kv(scheme: str, values: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Undo `quantize_kv`: values [tokens, heads, head_dim] and scales [tokens, heads]."""
    rows = torch.empty(values.shape, dtype=dtype, device=values.device)
    # The fp32 intermediates of a chunk stay in the processor's cache.
    for start in range(0, len(values), _CHUNK_TOKENS):
        chunk = slice(start, start + _CHUNK_TOKENS)
        floats = values[chunk] if scheme == "int8" else e4m3_to_bfloat16(values[chunk])
        rows[chunk] = floats * scales[chunk].unsqueeze(-1)
    return rows
