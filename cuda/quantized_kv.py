"""The KV cache as kernel arguments, and its quantized forms.

`kernels/attention/quantized_kv.cuh` has 8 bits, `kernels/attention/int5_kv.cuh` fewer.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import Gpu

# The value of the macro KV_SCHEME for each scheme.
KV_SCHEMES = {"int8": "1", "fp8": "2", "int5": "3"}
PACKED_HEAD_DIMS = (64, 128)  # of int5: a head's words and its rotation fit the lanes of a warp


@dataclass(frozen=True)
class KVScales:
    """The `scheme` of a quantized cache, int8, fp8 (e4m3) or int5, and its scales.

    The cache holds the quantized values as int8, for fp8 their bits. `scales` fp32
    [num_blocks, 2 * num_kv_heads, block_size] has one for each row of head_dim values. With int5
    the rows of the cache have head_dim / 2 bytes, and `key_bits` and `value_bits` int8
    [num_blocks, num_kv_heads, block_size, head_dim / 4 or head_dim / 8] have the upper bits.
    """

    scheme: str
    scales: Tensor
    key_bits: Tensor | None = None
    value_bits: Tensor | None = None

    def check(self, cache: Tensor, dtype: torch.dtype, gpu: Gpu) -> None:
        """Raise `ValueError` unless the scales fit the cache and the kernels compute in `dtype`."""
        if self.scheme not in KV_SCHEMES:
            known = ", ".join(KV_SCHEMES)
            raise ValueError(f"the cache's scheme must be one of {known}, not {self.scheme}")
        head_dim = head_dim_of(cache, self)
        supports = head_dim in PACKED_HEAD_DIMS if self.scheme == "int5" else head_dim % 16 == 0
        if dtype not in (torch.bfloat16, torch.float16) or not supports:
            raise ValueError(f"no {self.scheme} cache for {dtype} and head_dim {head_dim}")
        check_tensor("scales", self.scales, tuple(cache.shape[:-1]), "float32", gpu)
        if self.scheme != "int5":
            return
        num_blocks, twice_kv_heads, block_size, half = cache.shape
        rows = (num_blocks, twice_kv_heads // 2, block_size)
        if self.key_bits is None or self.value_bits is None:
            raise ValueError("key_bits or value_bits are missing")
        check_tensor("key_bits", self.key_bits, (*rows, half // 2), "int8", gpu)
        check_tensor("value_bits", self.value_bits, (*rows, half // 4), "int8", gpu)


def scheme_of(kv_scales: KVScales | None) -> str | None:
    """Return the scheme of a cache, None if it is not quantized."""
    return None if kv_scales is None else kv_scales.scheme


def head_dim_of(cache: Tensor, kv_scales: KVScales | None) -> int:
    """Return the elements of a head."""
    return cache.shape[-1] * (2 if scheme_of(kv_scales) == "int5" else 1)


def scheme_parameters(scheme: str | None) -> str:
    """Return the further parameters of a kernel that uses a cache of this scheme."""
    if scheme is None:
        return ""
    return ", pointer kv_scales" + (
        ", pointer key_bits, pointer value_bits" if scheme == "int5" else ""
    )


def cache_arguments(cache: Tensor, kv_scales: KVScales | None) -> dict[str, Any]:
    """Return the kernel arguments that describe a cache, and its scales if it is quantized."""
    _, twice_kv_heads, block_size, _ = cache.shape
    arguments: dict[str, Any] = {
        "cache": cache,
        "num_kv_heads": twice_kv_heads // 2,
        "head_dim": head_dim_of(cache, kv_scales),
        "log2_block_size": block_size.bit_length() - 1,
    }
    if kv_scales is not None:
        arguments["kv_scales"] = kv_scales.scales
    if kv_scales is not None and kv_scales.scheme == "int5":
        arguments |= {"key_bits": kv_scales.key_bits, "value_bits": kv_scales.value_bits}
    return arguments
