"""Layers of the KV cache for the CPU kernels: heads first, in every format, with poisoned slots."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from swiftchat.engine.cpu.native import KVFormat, LayerCache
from swiftchat.engine.model.int5_kv import pack_kv, packed_sizes, unpack_kv
from swiftchat.engine.model.quantized_kv import quantize_kv
from tests.support.native.ops import aligned

DTYPES = {
    KVFormat.F32: torch.float32,
    KVFormat.F16: torch.float16,
    KVFormat.BF16: torch.bfloat16,
}
SCHEMES = {KVFormat.INT8: "int8", KVFormat.FP8: "fp8"}


@dataclass(frozen=True)
class NativeKV:
    """One layer: values [num_blocks, 2 * num_kv_heads, block_size, head_dim], and their scales.

    Every slot is NaN at first; for int8 and int5 its scale is. `bits` are int5's upper ones.
    """

    format: KVFormat
    block_size: int
    values: Tensor
    scales: Tensor | None
    bits: tuple[Tensor, ...] = ()

    @classmethod
    def empty(
        cls, kv: KVFormat, num_blocks: int, heads: int, block_size: int, head_dim: int
    ) -> "NativeKV":
        shape = (num_blocks, heads, block_size, head_dim)
        if kv in DTYPES:
            return cls(
                kv, block_size, aligned(torch.full(shape, torch.nan, dtype=DTYPES[kv])), None
            )
        scales = aligned(torch.full(shape[:3], torch.nan))
        if kv == KVFormat.INT5:
            values, *bits = (
                aligned(torch.full((num_blocks, rows, block_size, size), 0x7F, dtype=torch.int8))
                for rows, size in packed_sizes(heads, head_dim)
            )
            return cls(kv, block_size, values, scales, tuple(bits))
        values = torch.full(shape, 0x7F, dtype=torch.int8)
        return cls(kv, block_size, aligned(values), scales)

    @property
    def struct(self) -> LayerCache:
        scales = None if self.scales is None else self.scales.data_ptr()
        bits = [part.data_ptr() for part in self.bits]
        return LayerCache(self.format, self.block_size, self.values.data_ptr(), scales, *bits)

    def store(self, slots: Sequence[int], rows: Tensor) -> None:
        """Write rows [n, 2 * num_kv_heads, head_dim] to the slots."""
        index = torch.tensor(slots)
        blocks, offsets = index // self.block_size, index % self.block_size
        if self.format == KVFormat.INT5 and self.scales is not None:
            tensors = (self.values, *self.bits, self.scales)
            for tensor, part in zip(tensors, pack_kv(rows), strict=True):
                tensor[blocks, :, offsets] = part
        elif self.scales is None:
            self.values[blocks, :, offsets] = rows.to(self.values.dtype)
        else:
            values, scales = quantize_kv(SCHEMES[self.format], rows)
            self.values[blocks, :, offsets], self.scales[blocks, :, offsets] = values, scales

    def rows(self, slots: Sequence[int]) -> Tensor:
        """Return the slots' rows in fp64: [n, 2 * num_kv_heads, head_dim]; int5 rotated."""
        index = torch.tensor(slots)
        at = (index // self.block_size, slice(None), index % self.block_size)
        if self.format == KVFormat.INT5 and self.scales is not None:
            parts = (self.values[at], *(part[at] for part in self.bits))
            steps = unpack_kv((*parts, torch.ones_like(self.scales[at])), torch.float32)
            return steps.double() * self.scales[at].double().unsqueeze(-1)
        values = self.values[at]
        if self.format == KVFormat.FP8:
            values = values.view(torch.float8_e4m3fn).float()
        wide = values.double()
        return wide if self.scales is None else wide * self.scales[at].double().unsqueeze(-1)
