"""Stop strings: where generated text ends."""

from collections.abc import Iterable

__all__ = ["StopMatcher"]


class StopMatcher:
    """Releases text up to the first stop string, holding back what may still become one.

    The match that ends first wins; of those that end together the longest. So what is released
    does not depend on how the text was cut into pieces. Once `stopped`, nothing comes out.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        """Watch for the `stops`; raises ValueError for an empty one."""
        self._stops = tuple(dict.fromkeys(stops))
        if "" in self._stops:
            raise ValueError("a stop string is empty")
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Take in more text and return what can no longer be part of a stop string."""
        if self.stopped or not text:
            return ""
        text = self._held + text
        matches = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if matches:
            self.stopped = True
            self._held = ""
            return text[: min(matches)[1]]
        keep = self._unfinished(text)
        self._held = text[keep:]
        return text[:keep]

    def flush(self) -> str:
        """Return what was held back, at the end of the text."""
        rest, self._held = self._held, ""
        return rest

    def _unfinished(self, text: str) -> int:
        """Where the longest end of `text` begins that a stop string could begin with."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            end = text[start:]
            if any(stop.startswith(end) for stop in self._stops):
                return start
        return len(text)
