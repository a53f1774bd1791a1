"""The likeliest token, by ranks of which each has some columns of the logits."""

import torch
from torch import Tensor

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.comm.communicator import Communicator


def is_plain_greedy(params: SamplingParams) -> bool:
    """Whether the largest logit alone says which token is next: no other's is asked for."""
    return (
        params.temperature == 0
        and params.repeat_penalty == 1
        and not params.presence_penalty
        and not params.frequency_penalty
        and params.logprobs is None
    )


def likeliest(own: Tensor, width: int, ranks: Communicator) -> list[int]:
    """Each row's id with the largest logit, the lowest of equals; -1 where one is not finite.

    `own` is fp32 [n, this rank's columns], of `width` in all, as `Ranks.gather` takes it. All ranks
    call it and get the same: of the logits, just what `sample` would choose. But only each one's
    largest passes between them, with its id, which fp64 holds exactly as it does any fp32.
    """
    first_id = ranks.rank * -(-width // ranks.size)
    values, columns = own.max(1)  # the first of equals
    values = values.masked_fill(~torch.isfinite(own).all(1), torch.nan)
    mine = torch.stack((values.double(), (first_id + columns).double()), 1)
    pairs = ranks.all_gather(mine, 2 * ranks.size).cpu()
    best, ids = pairs[:, 0::2], pairs[:, 1::2].long()
    chosen = ids.gather(1, best.argmax(1, keepdim=True)).squeeze(1)
    found: list[int] = chosen.masked_fill(best.isnan().any(1), -1).tolist()
    return found
