"""The most probable ids of rows of logits, with their logprobs."""

import torch
from torch import Tensor

from swiftchat.cuda.checks import MAX_GRID_Y, check_tensor
from swiftchat.cuda.gpu import Gpu, KernelSpec

_THREADS, _LOGITS_PER_BLOCK = 256, 4096
_MAX_VOCAB_SIZE = _THREADS * _LOGITS_PER_BLOCK

_TOP_LOGPROBS = KernelSpec(
    "top_logprobs",
    "pointer logits, pointer logprobs, pointer ids, pointer log_sums, pointer workspace, "
    "int vocab_size, int num_top",
)
VARIANTS = [_TOP_LOGPROBS]


def top_logprobs(gpu: Gpu, logits: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the `num_top` largest logprobs of each row of logits fp32 [n, vocab_size].

    The logprobs are fp32 [n, num_top], largest first, of equal ones the lower id first; their ids
    int32 [n, num_top]; and log(sum(exp(logits))) fp32 [n]. A row with a NaN or an infinite logit
    gets NaN and ids of 0. Raises `ValueError` unless 1 <= num_top <= vocab_size <= 2^20.
    """
    n, vocab_size = logits.shape
    # Rows of a larger matrix are aligned to 4 bytes only, if the vocabulary is odd.
    check_tensor("logits", logits, (n, vocab_size), "float32", gpu, alignment_bytes=4)
    if n > MAX_GRID_Y or not 0 < num_top <= vocab_size <= _MAX_VOCAB_SIZE:
        raise ValueError(f"{num_top} of {vocab_size} logits in {n} rows")
    ids = torch.empty(n, num_top, dtype=torch.int32, device=logits.device)
    logprobs = torch.empty(n, num_top, device=logits.device)
    log_sums = torch.empty(n, device=logits.device)
    if n == 0:
        return logprobs, ids, log_sums
    num_blocks = -(-vocab_size // _LOGITS_PER_BLOCK)
    width = 1 + num_blocks * (num_top + 1)
    gpu.kernel(_TOP_LOGPROBS)(
        (num_blocks, n),
        _THREADS,
        num_bytes=logits.nbytes,
        logits=logits,
        logprobs=logprobs,
        ids=ids,
        log_sums=log_sums,
        workspace=torch.zeros(n, width, dtype=torch.int64, device=logits.device),
        vocab_size=vocab_size,
        num_top=num_top,
    )
    return logprobs, ids, log_sums
