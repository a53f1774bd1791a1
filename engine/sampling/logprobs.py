"""Logprobs of tokens: the log-softmax of the logits as the model computed them.

They are taken before any control, so they describe the model and not the sampling parameters.
"""

import torch
from torch import Tensor

from swiftchat.engine.api.protocol import Logprob


def pack_logprobs(logits: Tensor, tokens: list[int], num_top: int) -> Tensor:
    """Return fp64 [len(tokens), 1 + 2 · num_top]: logprob of the token, top logprobs, their ids.

    `logits` is fp32 [len(tokens), vocab_size]. fp64 holds ids exactly.
    """
    logprobs = torch.log_softmax(logits, 1)
    chosen = logprobs.gather(1, torch.tensor(tokens, device=logits.device).unsqueeze(1))
    values, ids = logprobs.topk(min(num_top, logits.shape[1]), 1)
    return torch.cat((chosen.double(), values.double(), ids.double()), 1)


def unpack_logprobs(packed: Tensor) -> list[Logprob]:
    """Return the logprobs that `pack_logprobs` packed."""
    num_top = packed.shape[1] // 2
    return [
        Logprob(row[0], list(zip(map(int, row[1 + num_top :]), row[1 : 1 + num_top], strict=True)))
        for row in packed.tolist()
    ]
