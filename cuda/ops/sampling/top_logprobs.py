"""The most probable ids of rows of logits, with their logprobs."""

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu

_THREADS, _LOGITS_PER_BLOCK = 256, 4096
_MAX_VOCAB_SIZE = _THREADS * _LOGITS_PER_BLOCK


def top_logprobs(gpu: Gpu, logits: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the `num_top` largest logprobs of each row of logits fp32 [n, vocab_size].

    The logprobs are fp32 [n, num_top], largest first, of equal ones the lower id first; their ids
    int32 [n, num_top]; and log(sum(exp(logits))) fp32 [n]. A row with a NaN or an infinite logit
    gets NaN and ids of 0. Raises `ValueError` unless 1 <= num_top <= vocab_size <= 2^20.
    """
    n, vocab_size = logits.shape
    if not 0 < num_top <= vocab_size <= _MAX_VOCAB_SIZE:
        raise ValueError(f"{num_top} of {vocab_size} logits in {n} rows")
    ids = torch.empty(n, num_top, dtype=torch.int32, device=logits.device)
    logprobs = torch.empty(n, num_top, device=logits.device)
    log_sums = torch.empty(n, device=logits.device)
    num_blocks = -(-vocab_size // _LOGITS_PER_BLOCK)
    width = 1 + num_blocks * (num_top + 1)
    gpu.kernel("top_logprobs")(
        (num_blocks, n),
        _THREADS,
        num_bytes=logits.nbytes,
        logits=logits,
        logprobs=logprobs,
        ids=ids,
        log_sums=log_sums,
        workspace=torch.zeros(n, width, dtype=torch.int64, device=logits.device),
    )
    return logprobs, ids, log_sums
