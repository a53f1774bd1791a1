"""Sliding contexts: a full sequence loses its middle, and its answer goes on."""

from dataclasses import replace

from swiftchat.engine.schedule.sequence import TokenSequence


def drop_middle(sequence: TokenSequence, num_kept: int) -> int:
    """Drop half of a sequence's tokens behind the first `num_kept`; return their number.

    The newest tokens stay. The others move to lower positions, so all behind the first ones must
    be computed again. What follows then equals the answer to a prompt of the tokens that stay, with
    the rest of `min_tokens`; penalties still know which of them are generated.
    """
    num_dropped = (len(sequence.tokens) - num_kept + 1) // 2
    end = num_kept + num_dropped
    num_prompt = max(0, min(end, sequence.num_prompt) - num_kept)
    num_generated = num_dropped - num_prompt
    del sequence.tokens[num_kept:end]
    sequence.num_prompt -= num_prompt
    sequence.num_dropped_prompt += num_prompt
    sequence.num_dropped_generated += num_generated
    sequence.num_slides += 1
    params = sequence.params
    sequence.params = replace(
        params,
        min_tokens=max(0, params.min_tokens - num_generated),
        prompt_logprobs=None,  # they were reported
    )
    return num_dropped
