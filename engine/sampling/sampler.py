"""Chooses the next token from one sequence's logits."""

import math
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.protocol import Logprob
from swiftchat.engine.sampling.philox import uniform
from swiftchat.errors import BadModelFile

# Top-p and min-p nearly always keep fewer candidates than this; finding them is then a partial
# sort of the vocabulary instead of a whole one. The result is the same either way.
_NARROW = 256


def sample(
    logits: Tensor, tokens: Sequence[int], num_prompt: int, params: SamplingParams, seed: int
) -> int:
    """The id that follows `tokens` (a prompt of `num_prompt` and what was generated since).

    `logits` is fp32 [vocab_size] and is not modified. Order: penalties → temperature → top-k →
    min-p → top-p. Greedy ties go to the lowest id. Draws are a function of (seed, number of
    tokens) alone. Raises `BadModelFile` when a logit is NaN or infinite.
    """
    if not math.isfinite(logits.sum()) and not torch.isfinite(logits).all():
        raise not_finite()
    logits = penalize(logits, tokens, num_prompt, params)
    if params.temperature == 0:
        return int(logits.max(0).indices)  # the first of equals; a third of `argmax`'s time
    # The largest taken off first, and no smaller divisor: neither overflows then.
    probs = torch.softmax((logits - logits.max()) / max(params.temperature, 1e-6), 0)
    values, ids = _candidates(probs, params)
    cumulative = values.double().cumsum(0)
    num_kept = len(values)
    if params.top_p < 1:
        # The kept ones are a prefix: each starts below top_p of the mass, the last may cross it.
        num_kept = 1 + int((cumulative[:-1] < params.top_p * _mass(cumulative, params)).sum())
    point = uniform(seed, len(tokens)) * float(cumulative[num_kept - 1])
    index = int(torch.searchsorted(cumulative[:num_kept], point, right=True))
    return int(ids[min(index, num_kept - 1)])


def likelihood(logits: Tensor, token: int, num_likeliest: int) -> Logprob:
    """How likely a token, and which tokens are the likeliest, by one sequence's logits.

    `logits` is fp32 [vocab_size], as the model computed them: log-softmax before penalties,
    temperature and filters, so that the numbers say what the model thinks whatever the sampling,
    and add up to one over the vocabulary.
    """
    logprobs = torch.log_softmax(logits, 0)
    values, ids = logprobs.topk(min(num_likeliest, len(logprobs)))
    likeliest = list(zip(ids.tolist(), values.tolist(), strict=True))
    return Logprob(float(logprobs[token]), likeliest)


def not_finite() -> BadModelFile:
    """What is raised for logits that are NaN or infinite."""
    return BadModelFile(
        "the model computed logits that are not finite numbers",
        "its weights may be damaged, or need --dtype float32",
    )


def penalize(
    logits: Tensor, tokens: Sequence[int], num_prompt: int, params: SamplingParams
) -> Tensor:
    """Logits with the penalties applied; the same tensor if none is on.

    The repetition penalty divides positive and multiplies negative logits, once for each id in
    `tokens` (Keskar et al., 2019, arXiv:1909.05858). Presence and frequency penalties are
    subtracted once, and once per occurrence, for each id that was generated.
    """
    if params.repeat_penalty != 1:
        seen = torch.tensor(list(set(tokens)), device=logits.device)
        old = logits[seen]
        factor = params.repeat_penalty
        logits = logits.index_copy(0, seen, torch.where(old > 0, old / factor, old * factor))
    generated = Counter(tokens[num_prompt:])
    if generated and (params.presence_penalty or params.frequency_penalty):
        ids = torch.tensor(list(generated), device=logits.device)
        counts = torch.tensor(list(generated.values()), device=logits.device)
        penalty = params.presence_penalty + params.frequency_penalty * counts
        logits = logits.index_add(0, ids, -penalty.to(logits.dtype))
    return logits


def _candidates(probs: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Probabilities and ids left by top-k and min-p, largest first (any order if all are left).

    May end early once they hold all that top-p can keep.
    """
    vocab_size = len(probs)
    top_k = min(params.top_k or vocab_size, vocab_size)
    if top_k == vocab_size and params.min_p == 0 and params.top_p == 1:
        return probs, torch.arange(vocab_size, device=probs.device)
    num_first = top_k if params.top_k else min(_NARROW, vocab_size)
    values, ids = probs.topk(num_first)
    floor = params.min_p * values[0]
    if num_first < top_k and values[-1] >= floor:
        # min-p keeps more than these: they do only if top-p, of the mass of all, ends in them.
        covered = params.min_p == 0 and values.double().sum() >= params.top_p
        if not covered:
            values, ids = probs.sort(descending=True, stable=True)
    num_kept = int((values >= floor).sum())
    return values[:num_kept], ids[:num_kept]


def _mass(cumulative: Tensor, params: SamplingParams) -> float:
    """The mass that top-p is a share of: what top-k and min-p left, which is all without them."""
    return 1.0 if not params.top_k and params.min_p == 0 else float(cumulative[-1])
