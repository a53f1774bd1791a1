"""Checks of a request before it is queued."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from swiftchat.engine.api.params import SamplingParams
from swiftchat.errors import ContextOverflow, UsageError
from swiftchat.weights.architectures.parts.model import ModelConfig


def check_request(
    prompt: Sequence[int], params: SamplingParams, config: ModelConfig, ctx_size_tokens: int
) -> None:
    """Raise `UsageError` or `ContextOverflow` for a prompt that cannot be answered or embedded."""
    if not prompt:
        raise UsageError("the prompt is empty")
    words = chain.from_iterable(params.bad_words)
    ids = [*prompt, *(token for token, _ in params.logit_bias), *words]
    # Not one by one: a loop over the ids of a long prompt takes milliseconds.
    if min(ids) < 0 or max(ids) >= config.vocab_size:
        bad = next(i for i in ids if not 0 <= i < config.vocab_size)
        raise UsageError(f"token id {bad} is outside the vocabulary of {config.vocab_size}")
    if params.pooling is not None and len(prompt) > ctx_size_tokens:
        raise ContextOverflow(
            f"the text has {len(prompt)} tokens, the context {ctx_size_tokens}",
            "shorten or divide it, or choose a larger --ctx-size if the model has one",
        )
    if params.pooling is None and len(prompt) >= ctx_size_tokens:
        raise ContextOverflow(
            f"the prompt has {len(prompt)} tokens, the context {ctx_size_tokens}, "
            "and an answer needs at least one",
            "shorten it, or choose a larger --ctx-size if the model has one",
        )
    if params.sliding_keep is not None:
        _check_sliding(params.sliding_keep, config, ctx_size_tokens)


def check_tuned(
    prompt: Sequence[int], params: SamplingParams, num_virtual: int, ctx_size_tokens: int
) -> SamplingParams:
    """Return the parameters for a prompt with adapters, behind `num_virtual` virtual tokens.

    A sliding context keeps these.

    Raises as `check_request` does.
    """
    if params.pooling is not None:
        raise UsageError("embeddings are those of the base model", "leave out the adapters")
    if num_virtual + len(prompt) >= ctx_size_tokens:
        raise ContextOverflow(
            f"the prompt has {len(prompt)} tokens, the soft prompt {num_virtual}, the context "
            f"{ctx_size_tokens}, and an answer needs at least one",
            "shorten it, or choose a larger --ctx-size if the model has one",
        )
    if params.sliding_keep is None or not num_virtual:
        return params
    if num_virtual > ctx_size_tokens // 2:
        raise UsageError(
            "the soft prompt fills more than half of the context, which cannot slide",
            "choose a larger --ctx-size, or --overflow error",
        )
    return replace(
        params, overflow_keep=min(params.sliding_keep + num_virtual, ctx_size_tokens // 2)
    )


def _check_sliding(num_kept: int, config: ModelConfig, ctx_size_tokens: int) -> None:
    """Raise `UsageError` for a context that cannot slide."""
    if num_kept > ctx_size_tokens // 2:
        raise UsageError(
            f"{num_kept} kept tokens are more than half of the context of {ctx_size_tokens}",
            "choose a smaller --overflow-keep or a larger --ctx-size",
        )
    if config.prefix_lm is not None:
        raise UsageError(
            "the model's prompt is bidirectional, so its context cannot slide",
            "choose --overflow error or drop-oldest",
        )
