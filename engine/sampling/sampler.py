"""Sample the next token from one sequence's logits, with counter-based random numbers."""

import math
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.protocol import Logprob
from swiftchat.errors import BadModelFile

# Top-p and min-p rarely keep more candidates than this, so a partial sort of the vocabulary is
# enough. The result equals that of a full sort.
_NUM_PARTIAL_SORT = 256

_PHILOX_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_PHILOX_WEYL = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF


def sample(
    logits: Tensor, tokens: Sequence[int], num_prompt: int, params: SamplingParams, seed: int
) -> int:
    """Return the id that follows `tokens`: a prompt of `num_prompt` ids and the generated ones.

    `logits` is fp32 [vocab_size] and is not modified. Order: penalties → temperature → top-k →
    min-p → top-p. Greedy ties go to the lowest id. The random number depends only on the seed and
    the number of tokens. Raises `BadModelFile` when a logit is NaN or infinite.
    """
    if not math.isfinite(logits.sum()) and not torch.isfinite(logits).all():
        raise not_finite_error()
    logits = apply_penalties(logits, tokens, num_prompt, params)
    if params.temperature == 0:
        return _first_maximum(logits)
    # Subtracting the maximum and bounding the divisor prevent overflow.
    probs = torch.softmax((logits - logits.max()) / max(params.temperature, 1e-6), 0)
    values, ids = _candidates(probs, params)
    cumulative = values.double().cumsum(0)
    num_kept = len(values)
    if params.top_p < 1:
        # Keep a candidate if those before it have less than top_p of the probability mass.
        has_filter = params.top_k or params.min_p > 0
        total = float(cumulative[-1]) if has_filter else 1.0
        num_kept = 1 + int((cumulative[:-1] < params.top_p * total).sum())
    point = uniform(seed, len(tokens)) * float(cumulative[num_kept - 1])
    index = int(torch.searchsorted(cumulative[:num_kept], point, right=True))
    return int(ids[min(index, num_kept - 1)])


def _first_maximum(logits: Tensor) -> int:
    """Return the index of the maximum, the first of equal ones.

    On the CPU numpy finds it in a tenth of torch's time, on a GPU torch's `max` takes a third of
    its `argmax`.
    """
    return int(logits.numpy().argmax() if logits.is_cpu else logits.max(0).indices)


def token_logprob(logits: Tensor, token: int, num_top: int) -> Logprob:
    """Return the logprob of a token, with the `num_top` tokens of the highest logprobs.

    `logits` is fp32 [vocab_size] as the model computed them: the log-softmax is taken before
    penalties, temperature and filters, so it describes the model and not the sampling parameters.
    """
    logprobs = torch.log_softmax(logits, 0)
    values, ids = logprobs.topk(min(num_top, len(logprobs)))
    return Logprob(float(logprobs[token]), list(zip(ids.tolist(), values.tolist(), strict=True)))


def not_finite_error() -> BadModelFile:
    """Return the error for logits that are NaN or infinite."""
    return BadModelFile(
        "the model computed logits that are not finite numbers",
        "its weights may be damaged, or need --dtype float32",
    )


def apply_penalties(
    logits: Tensor, tokens: Sequence[int], num_prompt: int, params: SamplingParams
) -> Tensor:
    """Return the logits with the penalties applied; the same tensor if no penalty is set.

    The repetition penalty divides positive and multiplies negative logits, once for each id in
    `tokens` (Keskar et al., 2019, arXiv:1909.05858). For each generated id, the presence penalty
    is subtracted once and the frequency penalty once per occurrence.
    """
    penalty = params.repeat_penalty
    if penalty != 1:
        seen = torch.tensor(list(set(tokens)), device=logits.device)
        old = logits[seen]
        logits = logits.index_copy(0, seen, torch.where(old > 0, old / penalty, old * penalty))
    generated = Counter(tokens[num_prompt:])
    if generated and (params.presence_penalty or params.frequency_penalty):
        ids = torch.tensor(list(generated), device=logits.device)
        counts = torch.tensor(list(generated.values()), device=logits.device)
        penalties = params.presence_penalty + params.frequency_penalty * counts
        logits = logits.index_add(0, ids, -penalties.to(logits.dtype))
    return logits


def _candidates(probs: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Return the probabilities and ids that top-k and min-p keep, in descending order.

    Without any filter the order is that of the ids. Candidates that top-p will drop anyway may be
    missing at the end.
    """
    vocab_size = len(probs)
    top_k = min(params.top_k or vocab_size, vocab_size)
    if top_k == vocab_size and params.min_p == 0 and params.top_p == 1:
        return probs, torch.arange(vocab_size, device=probs.device)
    num_sorted = top_k if params.top_k else min(_NUM_PARTIAL_SORT, vocab_size)
    values, ids = probs.topk(num_sorted)
    min_prob = params.min_p * values[0]
    if num_sorted < top_k and values[-1] >= min_prob:
        # min-p keeps more candidates; the sorted ones suffice only if top-p ends among them.
        is_covered = params.min_p == 0 and values.double().sum() >= params.top_p
        if not is_covered:
            values, ids = probs.sort(descending=True, stable=True)
    num_kept = int((values >= min_prob).sum())
    return values[:num_kept], ids[:num_kept]


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, ...]:
    """Return four 32-bit words from a 128-bit counter and a 64-bit key, in ten rounds.

    Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011): the
    same words on every device, for any order of evaluation.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = _PHILOX_MULTIPLIERS[0] * c0, _PHILOX_MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _MASK, (p0 >> 32) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _PHILOX_WEYL[0]) & _MASK, (k1 + _PHILOX_WEYL[1]) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, position: int) -> float:
    """Return a number in [0, 1) for the token at `position` of a generation with a 64-bit seed."""
    words = philox4x32((position & _MASK, position >> 32, 0, 0), (seed & _MASK, seed >> 32))
    return ((words[0] << 21) | (words[1] >> 11)) * 2.0**-53
