"""The end of an answer that repeats itself."""

from collections.abc import Sequence

_LONGEST_TOKENS = 40  # of what is repeated
_NUM_TIMES = 5


class LoopStop:
    """Finds the token at which the same 40 tokens have come five times in a row.

    Shorter sequences count as well, once they fill as many tokens: a loop of 7 tokens is no other
    than one of 40. With `is_on` False no loop is found.
    """

    def __init__(self, *, is_on: bool) -> None:
        self.found = False
        self._is_on = is_on
        self._last: list[int] = []
        # For each length of a loop: how many of the last tokens equal the one so many before.
        self._num_equal = [0] * (_LONGEST_TOKENS + 1)

    def push(self, ids: Sequence[int]) -> int:
        """Take the next tokens; return how many of them belong to the answer, 0 after its end."""
        if not self._is_on:
            return len(ids)
        for number, token_id in enumerate(ids):
            if self.found:
                return number
            self._push(token_id)
        return len(ids)

    def _push(self, token_id: int) -> None:
        for length, before in enumerate(reversed(self._last), 1):
            num_equal = self._num_equal[length] + 1 if before == token_id else 0
            self._num_equal[length] = num_equal
            self.found = self.found or num_equal + length >= _LONGEST_TOKENS * _NUM_TIMES
        self._last = [*self._last[1 - _LONGEST_TOKENS :], token_id]
