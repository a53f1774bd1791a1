"""Sample the next token from one sequence's logits, with counter-based random numbers."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.sampling.bans import ban_tokens
from swiftchat.engine.sampling.filters import (
    Candidates,
    candidates,
    decayed_top_p,
    exclude_top_choices,
    keep_top_n_sigma,
)
from swiftchat.engine.sampling.penalties import add_bias, apply_dry, apply_penalties
from swiftchat.engine.sampling.philox import uniform
from swiftchat.errors import BadModelFile, SwiftchatError, UsageError

# What `sample` returns instead of a token.
NOT_FINITE, ALL_BANNED = -1, -2


def sample(
    logits: Tensor,
    tokens: Sequence[int],
    num_prompt: int,
    params: SamplingParams,
    seed: int,
    allowed: Tensor | None = None,
    position: int | None = None,
) -> int:
    """Return the id that follows `tokens`: a prompt of `num_prompt` ids and the generated ones.

    `logits` is fp32 [vocab_size] and is not modified. Greedy ties go to the lowest id. The random
    numbers depend only on the seed and the `position`, by default the number of tokens. `allowed`
    are the ids that a grammar allows, bool [vocab_size] on the CPU. Returns NOT_FINITE when a logit
    is NaN or infinite, ALL_BANNED when no id is left; `sampling_error` is their error.
    """
    if not math.isfinite(logits.sum()) and not torch.isfinite(logits).all():
        return NOT_FINITE
    logits = process_logits(logits, tokens, num_prompt, params)
    if allowed is not None:
        logits = logits.masked_fill(~allowed.to(logits.device), -torch.inf)
    if params.temperature == 0:
        token = _first_maximum(logits)
        return token if math.isfinite(logits[token]) else ALL_BANNED
    if not math.isfinite(logits.max()):
        return ALL_BANNED
    position = len(tokens) if position is None else position
    found = distribution(logits, tokens[num_prompt:], params)
    return draw(*exclude_top_choices(found, params, seed, position), seed, position)


def distribution(logits: Tensor, generated: Sequence[int], params: SamplingParams) -> Candidates:
    """Return what the temperature and the filters but XTC make of processed logits."""
    logits = keep_top_n_sigma(logits, params.top_n_sigma)
    # Subtracting the maximum and bounding the divisor prevent overflow.
    probs = torch.softmax((logits - logits.max()) / max(params.temperature, 1e-6), 0)
    return candidates(probs, params, decayed_top_p(generated, params))


def draw(values: Tensor, ids: Tensor, seed: int, position: int) -> int:
    """Return one of the ids, with a probability in proportion to its value."""
    cumulative = values.double().cumsum(0)
    point = uniform(seed, position) * float(cumulative[-1])
    index = int(torch.searchsorted(cumulative, point, right=True))
    return int(ids[min(index, len(ids) - 1)])


def process_logits(
    logits: Tensor, tokens: Sequence[int], num_prompt: int, params: SamplingParams
) -> Tensor:
    """Return the logits before the temperature: bias → penalties → DRY → bans.

    The same tensor if none is on; −inf for banned ids.
    """
    if not params.changes_logits:
        return logits
    logits = add_bias(logits, params)
    logits = apply_penalties(logits, tokens, num_prompt, params)
    logits = apply_dry(logits, tokens, params)
    return ban_tokens(logits, tokens, num_prompt, params)


def sampling_error(token: int, layer: int | None = None) -> SwiftchatError:
    """Return the error for NOT_FINITE or ALL_BANNED.

    `layer` is the first one with keys or values that are not finite, if that is known.
    """
    if token == ALL_BANNED:
        return UsageError(
            "every token that may come next is banned",
            "use fewer of --ban, --no-repeat-ngram and --min-tokens, or another grammar",
        )
    return BadModelFile(
        "the model computed logits that are not finite numbers"
        + ("" if layer is None else f": values are infinite or NaN from layer {layer} on"),
        "its weights may be damaged, or need --dtype float32",
    )


def _first_maximum(logits: Tensor) -> int:
    """Return the index of the maximum, the first of equal ones.

    On the CPU numpy finds it in a tenth of torch's time, on a GPU torch's `max` takes a third of
    its `argmax`.
    """
    return int(logits.numpy().argmax() if logits.is_cpu else logits.max(0).indices)
