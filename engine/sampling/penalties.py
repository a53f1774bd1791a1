"""Controls that add to logits: bias, repetition, presence and frequency penalties, DRY.

Each function takes logits fp32 [vocab_size] and returns new ones, or the same tensor if its
control is off. `tokens` are the ids of the sequence so far, of which `num_prompt` are the prompt.
"""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from swiftchat.engine.api.params import SamplingParams

_MAX_DRY_LENGTH = 50  # longer repetitions count as this long, so that the penalty stays finite


def add_bias(logits: Tensor, params: SamplingParams) -> Tensor:
    """Add `logit_bias` to the logits of its ids."""
    if not params.logit_bias:
        return logits
    ids, values = zip(*params.logit_bias, strict=True)
    return logits.index_add(0, _tensor(ids, logits), _tensor(values, logits).to(logits.dtype))


def apply_penalties(
    logits: Tensor, tokens: Sequence[int], num_prompt: int, params: SamplingParams
) -> Tensor:
    """Apply the repetition, presence and frequency penalties to the last `repeat_last_n` tokens.

    The repetition penalty divides positive and multiplies negative logits, once for each id in
    `tokens` (Keskar et al., 2019, arXiv:1909.05858). For each generated id, the presence penalty
    is subtracted once and the frequency penalty once per occurrence.
    """
    if not params.has_penalties:
        return logits
    if params.repeat_last_n > 0:
        start = max(0, len(tokens) - params.repeat_last_n)
        tokens, num_prompt = tokens[start:], max(0, num_prompt - start)
    penalty = params.repeat_penalty
    if penalty != 1:
        seen = _tensor(list(set(tokens)), logits)
        old = logits[seen]
        logits = logits.index_copy(0, seen, torch.where(old > 0, old / penalty, old * penalty))
    generated = Counter(tokens[num_prompt:])
    if generated and (params.presence_penalty or params.frequency_penalty):
        counts = _tensor(list(generated.values()), logits)
        penalties = params.presence_penalty + params.frequency_penalty * counts
        logits = logits.index_add(0, _tensor(list(generated), logits), -penalties.to(logits.dtype))
    return logits


def apply_dry(logits: Tensor, tokens: Sequence[int], params: SamplingParams) -> Tensor:
    """Penalize ids that would continue a repetition ("Don't Repeat Yourself", p-e-w, 2024).

    An id that followed an earlier occurrence of the last n tokens, with n at least
    `dry_allowed_length`, loses `dry_multiplier` · `dry_base`^(n − `dry_allowed_length`). The
    longest occurrence counts. A repetition contains no id of `dry_breaker_ids`.
    """
    if not params.dry_multiplier or not tokens:
        return logits
    lengths = _repeated_lengths(tokens, frozenset(params.dry_breaker_ids))
    excess = {
        token: length - params.dry_allowed_length
        for token, length in lengths.items()
        if length >= params.dry_allowed_length
    }
    if not excess:
        return logits
    penalties = [params.dry_multiplier * params.dry_base**n for n in excess.values()]
    subtracted = _tensor(penalties, logits).to(logits.dtype)
    return logits.index_add(0, _tensor(list(excess), logits), -subtracted)


def _repeated_lengths(tokens: Sequence[int], breakers: frozenset[int]) -> dict[int, int]:
    """Return, for each id that followed the last token, the longest suffix that preceded it."""
    last = len(tokens) - 1
    longest = 0  # of the suffix without breakers
    while longest < min(_MAX_DRY_LENGTH, last) and tokens[last - longest] not in breakers:
        longest += 1
    lengths: dict[int, int] = {}
    if not longest:
        return lengths
    end = -1
    while (end := _index(tokens, tokens[last], end + 1, last)) >= 0:
        length = 1
        while length <= min(longest - 1, end) and tokens[end - length] == tokens[last - length]:
            length += 1
        following = tokens[end + 1]
        if following not in breakers:
            lengths[following] = max(length, lengths.get(following, 0))
    return lengths


def _index(tokens: Sequence[int], token: int, start: int, stop: int) -> int:
    """Return the first index of a token in [start, stop), or -1."""
    try:
        return tokens.index(token, start, stop)
    except ValueError:
        return -1


def _tensor(values: Sequence[float], logits: Tensor) -> Tensor:
    return torch.tensor(values, device=logits.device)
