"""A suffix automaton of a growing text: where its longest repeated suffix occurred before."""

from collections.abc import Iterable


class SuffixAutomaton:
    """Finds the longest suffix of the ids so far that also ends at an earlier position.

    Takes amortized constant time and memory per id (Blumer et al., "The smallest automaton
    recognizing the subwords of a text", 1985). A state stands for the substrings that end at the
    same positions; its link is the state of the longest suffix that ends at more positions.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]  # of the longest substring of a state
        self._end = [-1]  # a position where the state's substrings end; the latest one known
        self._last = 0  # the state of the whole text
        self.match_length = 0
        self._match_end = -1

    def extend(self, ids: Iterable[int]) -> None:
        for token in ids:
            self._append(token)

    def following(self, num_tokens: int) -> list[int]:
        """Return up to `num_tokens` ids that followed the earlier occurrence.

        Where it reaches the end of the text, the ids found so far follow again.
        """
        if not self.match_length:
            return []
        found = self.ids[self._match_end + 1 : self._match_end + 1 + num_tokens]
        period = len(found)
        while len(found) < num_tokens:
            found.append(found[-period])
        return found

    def _append(self, token: int) -> None:
        position = len(self.ids)
        self.ids.append(token)
        new = self._add_state({}, self._length[self._last] + 1, position)
        state = self._last
        while state >= 0 and token not in self._next[state]:
            self._next[state][token] = new
            state = self._link[state]
        self._link[new] = 0 if state < 0 else self._split(state, token)
        self._last = new
        match = self._link[new]
        self.match_length, self._match_end = self._length[match], self._end[match]
        self._end[match] = position

    def _split(self, state: int, token: int) -> int:
        """Return the state of `state`'s longest substring and `token`, a new one if needed."""
        target = self._next[state][token]
        length = self._length[state] + 1
        if self._length[target] == length:
            return target
        clone = self._add_state(dict(self._next[target]), length, self._end[target])
        self._link[clone] = self._link[target]
        self._link[target] = clone
        while state >= 0 and self._next[state].get(token) == target:
            self._next[state][token] = clone
            state = self._link[state]
        return clone

    def _add_state(self, following: dict[int, int], length: int, end: int) -> int:
        self._next.append(following)
        self._link.append(-1)
        self._length.append(length)
        self._end.append(end)
        return len(self._next) - 1
