"""Matches of a pattern as Oniguruma finds them, under a time limit."""

import time
from collections.abc import Iterator
from typing import Any

# A pattern that takes longer than this backtracks exponentially.
_SECONDS = 1.0
_SECONDS_PER_CHARACTER = 2e-6


def time_limit(text: str) -> float:
    """Return the seconds that a pattern may take on `text`."""
    return _SECONDS + _SECONDS_PER_CHARACTER * len(text)


def spans_of_matches(pattern: Any, text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each match of `pattern`, compiled by `regex`, in order.

    They differ from Python's for a pattern that can match nothing: an empty match is none directly
    after another match, and the search continues behind the next character. Raises `TimeoutError`.
    """
    deadline = time.monotonic() + time_limit(text)
    last = -1
    for match in pattern.finditer(text, timeout=time_limit(text)):
        start, end = match.span()
        if start == end:
            break
        yield start, end
        last = end
    else:
        return
    at = end
    while at <= len(text):
        match = pattern.search(text, at, timeout=max(deadline - time.monotonic(), 1e-3))
        if match is None:
            return
        start, end = match.span()
        if start == end == last:
            at = end + 1
            continue
        yield start, end
        at = last = end
