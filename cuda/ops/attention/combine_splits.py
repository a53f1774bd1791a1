"""Joins attention over parts of the keys: `kernels/attention/combine_splits.cu`."""

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu

MAX_SPLITS = 32  # a warp's lanes hold their statistics
_ROWS_PER_BLOCK, _THREADS = 4, 128


def new_partials(gpu: Gpu, num_splits: int, out: Tensor) -> Tensor:
    """Return memory for the results of the splits of `out` [num_tokens, num_heads, head_dim].

    fp32: sums [num_splits, *out.shape], then the greatest score (in units of log2) and the sum of
    the weights, [num_splits, num_tokens, num_heads, 2].
    """
    num_tokens, num_heads, head_dim = out.shape
    rows = num_splits * num_tokens * num_heads
    return torch.empty(rows * (head_dim + 2), device=gpu.device)


def combine_splits(
    gpu: Gpu, partials: Tensor, query_starts: Tensor, num_splits: int, out: Tensor
) -> None:
    """Write the attention over all splits to out [num_tokens, num_heads, head_dim], bf16 or fp16.

    `partials` is as `new_partials` returns it; values of a split with a sum of weights of 0 are not
    read. `query_starts` int32 [num_seqs + 1]: only tokens below its last element are written.
    """
    num_tokens, num_heads, head_dim = out.shape
    if not 1 <= num_splits <= MAX_SPLITS:
        raise ValueError(f"{num_splits} splits are not between 1 and {MAX_SPLITS}")
    if out.dtype not in (torch.bfloat16, torch.float16) or head_dim % 8:
        raise ValueError(f"out must be bf16 or fp16 with head_dim % 8 == 0, not {out.dtype}")
    gpu.kernel("combine_splits", DTYPE=out.dtype)(
        -(-num_tokens * num_heads // _ROWS_PER_BLOCK),
        _THREADS,
        num_bytes=partials.nbytes + out.nbytes,
        partials=partials,
        query_starts=query_starts,
        out=out,
        num_seqs=len(query_starts) - 1,
        num_splits=num_splits,
    )
