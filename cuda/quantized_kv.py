"""The KV cache as kernel arguments, and its quantized forms.

`kernels/attention/quantized_kv.cuh` has 8 bits, `kernels/attention/int5_kv.cuh` fewer.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from swiftchat.cuda.signature import Macro

# The value of the macro KV_SCHEME for each scheme, as in `kernels/attention/kv_schemes.cuh`.
KV_SCHEMES = {"int8": "KV_INT8", "fp8": "KV_FP8", "int5": "KV_INT5"}
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

    def check(self, head_dim: int, dtype: torch.dtype) -> None:
        """Raise `ValueError` unless the kernels compute heads of this size in `dtype`."""
        if self.scheme not in KV_SCHEMES:
            known = ", ".join(KV_SCHEMES)
            raise ValueError(f"the cache's scheme must be one of {known}, not {self.scheme}")
        supports = head_dim in PACKED_HEAD_DIMS if self.scheme == "int5" else head_dim % 16 == 0
        if dtype not in (torch.bfloat16, torch.float16) or not supports:
            raise ValueError(f"no {self.scheme} cache for {dtype} and head_dim {head_dim}")


def scheme_of(kv_scales: KVScales | None) -> str | None:
    """Return the scheme of a cache, None if it is not quantized."""
    return None if kv_scales is None else kv_scales.scheme


def scheme_macros(scheme: str | None) -> dict[str, Macro]:
    """Return the further macros of a kernel that uses a cache of this scheme."""
    return {} if scheme is None else {"KV_SCHEME": KV_SCHEMES[scheme]}


def cache_arguments(cache: Tensor, kv_scales: KVScales | None) -> dict[str, Any]:
    """Return the kernel arguments that describe a cache, and its scales if it is quantized."""
    arguments: dict[str, Any] = {
        "cache": cache,
        "log2_block_size": cache.shape[2].bit_length() - 1,
    }
    if kv_scales is not None:
        arguments["kv_scales"] = kv_scales.scales
        if kv_scales.scheme == "int5":
            arguments |= {"key_bits": kv_scales.key_bits, "value_bits": kv_scales.value_bits}
    return arguments
