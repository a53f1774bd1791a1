"""Keys and values in 8 bits, or in about 5: a scale for each token and head."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from swiftchat.engine.model.int5_kv import pack_kv, rotate_heads, unpack_kv

# The largest value of each 8-bit scheme; a row is scaled so that its largest element becomes this.
LARGEST: Mapping[str, float] = MappingProxyType({"int8": 127.0, "fp8": 448.0})
SCHEMES = (*LARGEST, "int5")
# So that a row of zeros, or of elements near fp32's smallest, can be divided by its scale.
_SMALLEST_SCALE = 2.0**-100
_CHUNK_TOKENS = 512


@dataclass(frozen=True)
class QuantizedKV:
    """The keys and values of one layer; an element is its value times its row's scale.

    `scheme` is int8, fp8 (e4m3) or int5. `values` are int8, for fp8 the bits, in the layout of the
    plain cache: [num_blocks, block_size, 2 * num_kv_heads, head_dim], or with the heads before the
    tokens. `scales` are fp32, without the last dimension. With int5, heads are rotated and packed
    as `int5_kv` describes: the last dimension of `values` is head_dim / 2, and `key_bits` and
    `value_bits` have head_dim / 4 and head_dim / 8 bytes for each of num_kv_heads.
    """

    scheme: str
    values: Tensor
    scales: Tensor
    key_bits: Tensor | None = None
    value_bits: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors, the scales last."""
        parts = (self.values, self.key_bits, self.value_bits, self.scales)
        return tuple(part for part in parts if part is not None)

    def store(self, slots: Tensor, new: Tensor) -> None:
        """Write new [n, 2 * num_kv_heads, head_dim] to the slots [n]; not for heads first."""
        for tensor, rows in zip(self.tensors, self.quantize(new), strict=True):
            tensor.view(-1, *rows.shape[1:]).index_copy_(0, slots, rows)

    def quantize(self, new: Tensor) -> tuple[Tensor, ...]:
        """Return what `tensors` have for new [n, 2 * num_kv_heads, head_dim]: n first."""
        if self.scheme == "int5":
            return pack_kv(new)
        return quantize_kv(self.scheme, new)

    def dequantize(self, parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """Undo `quantize` for the parts of n tokens; int5's heads stay rotated."""
        if self.scheme == "int5":
            return unpack_kv(parts, dtype)
        values, scales = parts
        return dequantize_kv(self.scheme, values, scales, dtype)

    def rotated(self, heads: Tensor) -> Tensor:
        """Rotate queries [..., head_dim] as the cached keys are, or rotate outputs back.

        The rotation is its own inverse and keeps products of queries and keys. Only int5 has one.
        """
        return rotate_heads(heads) if self.scheme == "int5" else heads


def quantize_kv(scheme: str, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize rows [..., head_dim] to int8 values and fp32 scales [...], rounded to the nearest.

    `scheme` has 8 bits. A row with an infinity or a NaN gets a scale that is not finite, so it
    stays visible.
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


def e4m3_to_bfloat16(bits: Tensor) -> Tensor:
    """Convert e4m3 numbers, given as int8 bits, to bfloat16, exactly; NaNs are not supported.

    Exponent and fraction shifted to bfloat16's position are the same numbers times 2^-120, also
    subnormal ones. Torch's own conversion takes three times as long.
    """
    shifted = bits.to(torch.int16).bitwise_left_shift_(4).bitwise_and_(-0x7810)
    return shifted.view(torch.bfloat16).mul_(2.0**120)
