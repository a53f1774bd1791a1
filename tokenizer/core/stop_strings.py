"""Stop strings: end generated text at the first match."""

from collections.abc import Iterable


class StopMatcher:
    """Releases text up to the first stop string; holds back a possible beginning of one.

    The match that ends first wins; of those with the same end, the longest. The released text
    does not depend on how the input was split. After a match `found` is the stop string and nothing
    more is released.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        """Match any of `stops`; raises ValueError for an empty one."""
        self._stops = tuple(dict.fromkeys(stops))
        if "" in self._stops:
            raise ValueError("a stop string is empty")
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.found: str | None = None

    @property
    def stopped(self) -> bool:
        return self.found is not None

    def push(self, text: str) -> str:
        """Add text and return the part that cannot belong to a stop string any more."""
        if self.stopped or not text:
            return ""
        text = self._held + text
        matches = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if matches:
            end, start = min(matches)
            self.found, self._held = text[start:end], ""
            return text[:start]
        keep = self._unfinished(text)
        self._held = text[keep:]
        return text[:keep]

    def flush(self) -> str:
        """Return the text held back, at the end of the answer."""
        rest, self._held = self._held, ""
        return rest

    def _unfinished(self, text: str) -> int:
        """Return the start of the longest suffix of `text` that is a prefix of a stop string."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            end = text[start:]
            if any(stop.startswith(end) for stop in self._stops):
                return start
        return len(text)
