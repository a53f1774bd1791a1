"""Embeddings of texts: pooled hidden states, many texts at a time."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from swiftchat.engine.api.client import EngineClient, Generation
from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.protocol import Embedding
from swiftchat.errors import ContextOverflow, UsageError

_MAX_IN_FLIGHT = 64  # texts at a time, more than the engine computes together


def embed(
    engine: EngineClient,
    prompts: Sequence[Sequence[int]],
    pooling: str,
    on_progress: Callable[[int], None] = lambda num_done: None,
) -> Iterator[list[float]]:
    """Yield the embedding of each prompt, in order; `on_progress` receives their number.

    The engine computes short prompts together. When the iterator is closed, prompts in progress
    are canceled. Raises what `check_prompts` raises before anything is computed.
    """
    check_prompts(prompts, engine.wait_ready().ctx_size_tokens)
    params = SamplingParams(temperature=0, max_tokens=0, pooling=pooling)
    waiting, in_flight = deque(prompts), deque[Generation]()
    try:
        for num_done in range(1, len(prompts) + 1):
            while waiting and len(in_flight) < _MAX_IN_FLIGHT:
                in_flight.append(engine.generate(waiting.popleft(), params))
            (found,) = (event for event in in_flight[0] if isinstance(event, Embedding))
            in_flight.popleft()
            on_progress(num_done)
            yield found.values
    finally:
        for generation in in_flight:
            generation.cancel()


def check_prompts(
    prompts: Sequence[Sequence[int]], ctx_size_tokens: int, names: Sequence[str] = ()
) -> None:
    """Raise `UsageError` for an empty prompt, `ContextOverflow` for one that is too long.

    `names` are those of the prompts in errors.
    """
    for i, prompt in enumerate(prompts):
        name = names[i] if names else "the text" if len(prompts) == 1 else f"text {i + 1}"
        if not prompt:
            raise UsageError(f"{name} is empty", "an embedding needs at least one token")
        if len(prompt) > ctx_size_tokens:
            raise ContextOverflow(
                f"{name} has {len(prompt)} tokens, the context {ctx_size_tokens}",
                "shorten or divide it, or choose a larger --ctx-size if the model has one",
            )


def normalized(values: Sequence[float]) -> list[float]:
    """Return a vector divided by its Euclidean length; one of zeros stays as it is."""
    length = math.sqrt(math.fsum(value * value for value in values))
    return [value / length for value in values] if length else list(values)
