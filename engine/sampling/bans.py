"""Controls that ban ids: no-repeat n-gram, bad words and the minimum length."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from swiftchat.engine.api.params import SamplingParams


def ban_tokens(
    logits: Tensor, tokens: Sequence[int], num_prompt: int, params: SamplingParams
) -> Tensor:
    """Return logits fp32 [vocab_size] with −inf for the banned ids; the same tensor without any.

    `tokens` are the ids of the sequence so far, of which `num_prompt` are the prompt.
    """
    banned = {
        *repeated_ngram_ends(tokens, params.no_repeat_ngram),
        *completed_words(tokens, params.bad_words),
    }
    if len(tokens) - num_prompt < params.min_tokens:
        banned |= set(params.stop_ids)
    ids = [token for token in banned if token < len(logits)]
    if not ids:
        return logits
    return logits.index_fill(0, torch.tensor(ids, device=logits.device), -torch.inf)


def repeated_ngram_ends(tokens: Sequence[int], size: int) -> Iterable[int]:
    """Return the ids that would complete an n-gram of `size` ids for the second time; 0 is off."""
    if not size or len(tokens) < size:
        return ()
    if size == 1:
        return tokens
    prefix = tokens[len(tokens) - size + 1 :]
    # Only where the last id of the prefix occurs, which the loop in C finds quickly.
    return [
        tokens[end]
        for end in range(size - 1, len(tokens))
        if tokens[end - 1] == prefix[-1] and tokens[end - size + 1 : end] == prefix
    ]


def completed_words(tokens: Sequence[int], words: Iterable[Sequence[int]]) -> Iterable[int]:
    """Return the last id of each word whose other ids the sequence ends with."""
    num_tokens = len(tokens)
    for word in words:
        start = num_tokens - len(word) + 1
        if start >= 0 and tuple(tokens[start:]) == tuple(word[:-1]):
            yield word[-1]
