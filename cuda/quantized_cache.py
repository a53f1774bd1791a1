"""A cache whose numbers are kept in 8 bits: `kernels/attention/codes.cuh`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import Gpu

__all__ = ["CODES", "Codes"]

# The macro CODES for each form.
CODES = {"int8": "1", "fp8": "2"}


@dataclass(frozen=True)
class Codes:
    """What a cache of int8 codes needs to be read: its `form`, int8 or fp8 (e4m3, as bits), and
    `factors` fp32 [num_blocks, 2 * num_kv_heads, block_size], one for each row of head_dim."""

    form: str
    factors: Tensor

    def check(self, cache: Tensor, dtype: torch.dtype, gpu: Gpu) -> None:
        """Raise `ValueError` unless they fit the cache, and can be computed with in `dtype`."""
        head_dim = cache.shape[-1]
        if self.form not in CODES:
            raise ValueError(f"codes must be one of {', '.join(CODES)}, not {self.form}")
        if dtype not in (torch.bfloat16, torch.float16) or head_dim % 16:
            raise ValueError(f"no codes for {dtype} and head_dim {head_dim}")
        check_tensor("factors", self.factors, tuple(cache.shape[:-1]), "float32", gpu)
