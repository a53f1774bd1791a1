"""Filters: the candidates that top-nσ, top-k, typical-p, min-p, top-p and XTC keep.

Candidates are probabilities (fp32) and ids, in descending order of the probability. Without any
filter they are the whole vocabulary in the order of the ids.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.sampling.philox import uniform

Candidates = tuple[Tensor, Tensor]

# Top-p and min-p rarely keep more candidates than this, so a partial sort of the vocabulary is
# enough. The result equals that of a full sort.
_NUM_PARTIAL_SORT = 256
_SMALLEST_TOP_P = 1e-6  # keeps only the most probable token
_XTC_STREAM = 1  # of random numbers; tokens are drawn with those of stream 0


def candidates(probs: Tensor, params: SamplingParams, top_p: float) -> Candidates:
    """Return what top-k, typical-p, min-p and top-p keep of probs fp32 [vocab_size], in this order.

    `top_p` is that of this step: see `decayed_top_p`.
    """
    vocab_size = len(probs)
    top_k = min(params.top_k or vocab_size, vocab_size)
    has_typical = params.typical_p < 1
    if top_k == vocab_size and params.min_p == 0 and top_p == 1 and not has_typical:
        return probs, torch.arange(vocab_size, device=probs.device)
    num_sorted = top_k if has_typical else num_partial_sort(params.top_k, vocab_size)
    values, ids = probs.topk(num_sorted)
    if num_sorted < top_k and not _are_enough(values, params.min_p, top_p):
        values, ids = probs.sort(descending=True, stable=True)
    if has_typical:
        values, ids = keep_typical(values, ids, params.typical_p)
    num_kept = int((values >= params.min_p * values[0]).sum())
    values, ids = values[:num_kept], ids[:num_kept]
    has_filter = params.top_k > 0 or params.min_p > 0 or has_typical
    return keep_top_p(values, ids, top_p, has_filter)


def keep_top_n_sigma(logits: Tensor, n: float) -> Tensor:
    """Return logits fp32 [vocab_size] with −inf for those more than n σ below the maximum.

    0 is off. σ is the standard deviation of the logits of all ids that are not banned. No
    temperature changes what is kept (Tang et al., 2024, arXiv:2411.07641).
    """
    if n == 0:
        return logits
    sigma = logits[logits > -torch.inf].double().std(correction=0)
    return logits.masked_fill(logits < logits.max().double() - n * sigma, -torch.inf)


def exclude_top_choices(
    found: Candidates, params: SamplingParams, seed: int, position: int
) -> Candidates:
    """Return the candidates without the most probable ones, at some positions (XTC).

    At a part `xtc_probability` of the positions, the ids of at least the probability
    `xtc_threshold` are removed, but for the least probable of them.
    """
    values, ids = found
    if uniform(seed, position, _XTC_STREAM) >= params.xtc_probability:
        return found
    is_top = values >= params.xtc_threshold * float(values.double().sum())
    if int(is_top.sum()) < 2:
        return found
    least = values.masked_fill(~is_top, torch.inf).argmin()
    is_top[least] = False
    return values[~is_top], ids[~is_top]


def num_partial_sort(top_k: int, vocab_size: int) -> int:
    """Return how many of the most probable ids to sort first; with `top_k` they are enough."""
    return min(top_k or _NUM_PARTIAL_SORT, vocab_size)


def _are_enough(values: Tensor, min_p: float, top_p: float) -> bool:
    """Return whether min-p or top-p certainly ends among the largest probabilities."""
    if values[-1] < min_p * values[0]:
        return True
    return min_p == 0 and bool(values.double().cumsum(0)[-1] >= top_p)


def keep_typical(values: Tensor, ids: Tensor, mass: float) -> Candidates:
    """Keep the ids whose surprise is nearest to the expected one, until they have the mass.

    Locally typical sampling (Meister et al., 2022, arXiv:2202.00666): surprise is −log p and its
    expectation the entropy, of the candidates' renormalized probabilities.
    """
    probs = values.double() / values.double().sum()
    surprise = -probs.log()
    entropy = torch.where(probs > 0, probs * surprise, 0.0).sum()
    distance = (surprise - entropy).abs()
    order = distance.argsort(stable=True)
    num_before = int((probs[order].cumsum(0) < mass).sum())
    largest = distance[order[min(num_before, len(order) - 1)]]
    is_kept = distance <= largest
    return values[is_kept], ids[is_kept]


def keep_top_p(values: Tensor, ids: Tensor, top_p: float, is_filtered: bool) -> Candidates:
    """Keep a candidate if those before it have less than the part `top_p` of the mass.

    That is 1, and for candidates that a filter has left their sum.
    """
    if top_p == 1:
        return values, ids
    cumulative = values.double().cumsum(0)
    total = float(cumulative[-1]) if is_filtered else 1.0
    num_kept = 1 + int((cumulative[:-1] < top_p * total).sum())
    return values[:num_kept], ids[:num_kept]


def decayed_top_p(generated: Sequence[int], params: SamplingParams) -> float:
    """Return the top-p for the token after the `generated` ones.

    Each generated token multiplies top-p by `top_p_decay`, but not below `top_p_min`; an id of
    `top_p_reset_ids` resets it (factual-nucleus sampling, Lee et al., 2022, arXiv:2206.04624).
    """
    if params.top_p_decay == 1:
        return params.top_p
    num_tokens = 0
    for token in reversed(generated):
        if token in params.top_p_reset_ids:
            break
        num_tokens += 1
    return max(params.top_p * params.top_p_decay**num_tokens, params.top_p_min, _SMALLEST_TOP_P)
