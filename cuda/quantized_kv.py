"""The KV cache as kernel arguments, and the 8-bit cache: `kernels/attention/quantized_kv.cuh`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import Gpu

# The value of the macro KV_SCHEME for each scheme.
KV_SCHEMES = {"int8": "1", "fp8": "2"}


@dataclass(frozen=True)
class KVScales:
    """The `scheme` of a quantized cache, int8 or fp8 (e4m3), and its scales.

    The cache holds the quantized values as int8, for fp8 their bits. `scales` fp32
    [num_blocks, 2 * num_kv_heads, block_size] has one for each row of head_dim values.
    """

    scheme: str
    scales: Tensor

    def check(self, cache: Tensor, dtype: torch.dtype, gpu: Gpu) -> None:
        """Raise `ValueError` unless the scales fit the cache and the kernels compute in `dtype`."""
        head_dim = cache.shape[-1]
        if self.scheme not in KV_SCHEMES:
            known = ", ".join(KV_SCHEMES)
            raise ValueError(f"the cache's scheme must be one of {known}, not {self.scheme}")
        if dtype not in (torch.bfloat16, torch.float16) or head_dim % 16:
            raise ValueError(f"no quantized cache for {dtype} and head_dim {head_dim}")
        check_tensor("scales", self.scales, tuple(cache.shape[:-1]), "float32", gpu)


def scheme_of(kv_scales: KVScales | None) -> str | None:
    """Return the scheme of a cache, None if it is not quantized."""
    return None if kv_scales is None else kv_scales.scheme


def cache_arguments(cache: Tensor, kv_scales: KVScales | None) -> dict[str, Any]:
    """Return the kernel arguments that describe a cache, and its scales if it is quantized."""
    _, twice_kv_heads, block_size, head_dim = cache.shape
    arguments = {
        "cache": cache,
        "num_kv_heads": twice_kv_heads // 2,
        "head_dim": head_dim,
        "log2_block_size": block_size.bit_length() - 1,
    }
    return arguments if kv_scales is None else {**arguments, "kv_scales": kv_scales.scales}
