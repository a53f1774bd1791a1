"""Logprobs of tokens: the log-softmax of the logits as the model computed them.

They are taken before any control, so they describe the model and not the sampling parameters.
"""

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.sampling import top_logprobs as kernels
from swiftchat.engine.api.protocol import Logprob


def top_logprobs(logits: Tensor, num_top: int, gpu: Gpu | None) -> tuple[Tensor, Tensor]:
    """Return the largest logprobs of each row, largest first, and their ids.

    `logits` is fp32 [n, vocab_size]. Both are [n, num_top], or [n, vocab_size] if that is less.
    """
    num_top = min(num_top, logits.shape[1])
    if gpu is not None and num_top > 0:
        return kernels.top_logprobs(gpu, logits, num_top)[:2]
    found = torch.log_softmax(logits, 1).topk(num_top, 1)
    return found.values, found.indices


def pack_logprobs(
    logits: Tensor, tokens: list[int], num_top: int, gpu: Gpu | None = None
) -> Tensor:
    """Return fp64 [len(tokens), 1 + 2 · num_top]: logprob of the token, top logprobs, their ids.

    `logits` is fp32 [len(tokens), vocab_size]. fp64 holds ids exactly. Computed by our kernel with
    a `gpu`, else by torch.
    """
    chosen_ids = torch.tensor(tokens, device=logits.device).unsqueeze(1)
    num_top = min(num_top, logits.shape[1])
    if gpu is not None:
        values, ids, log_sums = kernels.top_logprobs(gpu, logits, max(num_top, 1))
        values, ids = values[:, :num_top], ids[:, :num_top]
        chosen = logits.gather(1, chosen_ids) - log_sums.unsqueeze(1)
    else:
        logprobs = torch.log_softmax(logits, 1)
        chosen = logprobs.gather(1, chosen_ids)
        values, ids = logprobs.topk(num_top, 1)
    return torch.cat((chosen.double(), values.double(), ids.double()), 1)


def unpack_logprobs(packed: Tensor) -> list[Logprob]:
    """Return the logprobs that `pack_logprobs` packed."""
    num_top = packed.shape[1] // 2
    return [
        Logprob(row[0], list(zip(map(int, row[1 + num_top :]), row[1 : 1 + num_top], strict=True)))
        for row in packed.tolist()
    ]
