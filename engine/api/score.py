"""Scores of a text: the logprob of each of its tokens, and its perplexity."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from swiftchat.engine.api.client import EngineClient, Generation
from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.protocol import Logprob, Prefill, PromptLogprobs
from swiftchat.errors import UsageError

_MAX_IN_FLIGHT = 4  # windows at a time


@dataclass(frozen=True)
class Score:
    """The logprobs of all tokens of a text but the first, which nothing precedes."""

    logprobs: list[Logprob]

    @property
    def nats(self) -> float:
        """The sum of −log p."""
        return -math.fsum(one.logprob for one in self.logprobs)

    @property
    def perplexity(self) -> float:
        """exp of the mean of −log p; infinite if that is too large for a float."""
        try:
            return math.exp(self.nats / len(self.logprobs))
        except OverflowError:
            return math.inf


@dataclass(frozen=True)
class Window:
    """The ids `start : end` of a text, of which those from `first_scored` on are scored."""

    start: int
    first_scored: int
    end: int


def windows(num_ids: int, context: int, stride: int) -> Iterator[Window]:
    """Divide a text into windows of `context` ids; each id but the first is scored once.

    Each window after the first scores `stride` ids, which follow `context - stride` others.
    """
    end = min(context, num_ids)
    yield Window(0, 1, end)
    while end < num_ids:
        first, end = end, min(end + stride, num_ids)
        yield Window(end - min(end, context), first, end)


def score(
    engine: EngineClient,
    ids: Sequence[int],
    *,
    context: int | None = None,
    stride: int | None = None,
    num_top: int = 0,
    on_progress: Callable[[int], None] = lambda num_scored: None,
) -> Score:
    """Return the logprobs of ids, each with the `num_top` most probable ones.

    A text longer than `context` (by default the longest that the engine has) is scored in windows:
    see `windows`. `stride` is half of the context by default. `on_progress` receives the number of
    ids scored so far. Raises `UsageError` for less than two ids and impossible windows.
    """
    longest = engine.wait_ready().ctx_size_tokens - 1  # the engine reserves one for an answer
    context = longest if context is None else context
    stride = max(1, context // 2) if stride is None else stride
    if not 2 <= context <= longest:
        raise UsageError(f"the context must be between 2 and {longest} tokens, not {context}")
    if not 1 <= stride < context:
        raise UsageError(f"the stride must be between 1 and {context - 1} tokens, not {stride}")
    if len(ids) < 2:
        raise UsageError(f"the text has {len(ids)} tokens", "a score needs at least two")
    params = SamplingParams(temperature=0, max_tokens=0, prompt_logprobs=num_top)
    logprobs: list[Logprob] = []
    waiting = deque(windows(len(ids), context, stride))
    in_flight: deque[tuple[Window, Generation]] = deque()
    try:
        while waiting or in_flight:
            while waiting and len(in_flight) < _MAX_IN_FLIGHT:
                window = waiting.popleft()
                in_flight.append((window, engine.generate(ids[window.start : window.end], params)))
            window, generation = in_flight[0]
            found: list[Logprob] = []
            for event in generation:
                if isinstance(event, PromptLogprobs):
                    found += event.logprobs
                elif isinstance(event, Prefill):
                    scored = window.start + event.done - window.first_scored
                    on_progress(len(logprobs) + max(0, scored))
            in_flight.popleft()
            logprobs += found[window.first_scored - window.start - 1 :]
            on_progress(len(logprobs))
    finally:
        for _, generation in in_flight:
            generation.cancel()
    return Score(logprobs)
