"""Keys and values in 8 bits: a row of head_dim codes and its factor, for each token and head."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from swiftchat.engine.linear.row_scaled_cpu import e4m3_to_bfloat16

# The largest number of each form; a row's factor makes its largest element this one.
LARGEST: Mapping[str, float] = MappingProxyType({"int8": 127.0, "fp8": 448.0})
# So that a row of zeros, or of numbers nearly as small as fp32 has any, can be divided by it.
_SMALLEST_FACTOR = 2.0**-100
_TOKENS_AT_ONCE = 512


@dataclass(frozen=True)
class QuantizedKV:
    """One layer's keys and values.

    `form` is int8 or fp8 (e4m3). `codes` are int8 in both, for fp8 a number's bits, and laid out
    like the plain cache: [num_blocks, block_size, 2 * kv_heads, head_dim], or with the heads
    before the tokens. `factors` are fp32, the same without the last dimension. A number is its
    code times its row's factor.
    """

    form: str
    codes: Tensor
    factors: Tensor

    def store(self, slots: Tensor, new: Tensor) -> None:
        """Write new [n, 2 * kv_heads, head_dim] into the slots [n], in place; not heads first."""
        codes, factors = encoded(self.form, new)
        self.codes.view(-1, *codes.shape[1:]).index_copy_(0, slots, codes)
        self.factors.view(-1, *factors.shape[1:]).index_copy_(0, slots, factors)


def encoded(form: str, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [..., head_dim] as int8 codes and fp32 factors [...], rounded to the nearest.

    A row with a number that is not finite gets a factor that is not: it is still seen when read.
    """
    wide = rows.float()
    factors = (wide.abs().amax(-1) / LARGEST[form]).clamp_(min=_SMALLEST_FACTOR)
    scaled = wide / factors.unsqueeze(-1)
    if form == "int8":
        return scaled.round_().to(torch.int8), factors
    return scaled.to(torch.float8_e4m3fn).view(torch.int8), factors


def decoded(form: str, codes: Tensor, factors: Tensor, dtype: torch.dtype) -> Tensor:
    """What `encoded` made codes [tokens, heads, head_dim] and factors [tokens, heads] of."""
    rows = torch.empty(codes.shape, dtype=dtype, device=codes.device)
    # In fp32 only some tokens at a time: they stay in the processor's cache.
    for start in range(0, len(codes), _TOKENS_AT_ONCE):
        some = slice(start, start + _TOKENS_AT_ONCE)
        numbers = codes[some] if form == "int8" else e4m3_to_bfloat16(codes[some])
        rows[some] = numbers * factors[some].unsqueeze(-1)
    return rows
