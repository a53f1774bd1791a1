"""The reasoning of one answer: where it begins and ends, and whether its budget is spent."""

from typing import Self

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.reasoning import ReasoningMarkers


class ReasoningProgress:
    """Follows an answer through its reasoning, token by token.

    `is_thinking`: the next token belongs to reasoning, unless it ends it. `num_tokens` is the
    number of the answer's tokens up to the last one of its reasoning, markers included.
    """

    def __init__(self, markers: ReasoningMarkers, budget: int) -> None:
        self.markers, self.budget = markers, budget
        self.is_thinking = markers.is_open
        self.num_tokens = 0
        self._num_pushed = self._num_ending = 0
        self._pieces = dict(markers.pieces)
        # What may be the beginning of a marker; None in the answer, which has none.
        self._tail: bytes | None = b""

    @classmethod
    def of(cls, params: SamplingParams) -> Self | None:
        """Return the progress of a new answer, None if its reasoning has no budget."""
        markers, budget = params.reasoning, params.reasoning_budget
        return None if markers is None or budget is None else cls(markers, budget)

    @property
    def is_spent(self) -> bool:
        """Whether the reasoning has to end now."""
        return self.is_thinking and self.num_tokens >= self.budget

    @property
    def num_left(self) -> int:
        """The most tokens until the budget is spent; at least the next one comes in any case."""
        return max(1, self.budget - self.num_tokens)

    def end(self) -> list[int]:
        """End the reasoning; return its last ids. They come next, and then the answer."""
        self.is_thinking, self._tail = False, None
        self._num_ending = len(self.markers.ending)
        return list(self.markers.ending)

    def push(self, *tokens: int) -> None:
        """Take the next tokens of the answer into account."""
        for token in tokens:
            self._num_pushed += 1
            if self._num_ending:
                self._num_ending -= 1
                self.num_tokens = self._num_pushed
            elif self._tail is not None:
                self._tail = self._follow(self._tail, self._pieces.get(token))
            if self.is_thinking:
                self.num_tokens = self._num_pushed

    def _follow(self, tail: bytes, piece: bytes | None) -> bytes | None:
        """Return what may begin a marker after a piece; a piece of None is any other text."""
        if piece is None:
            return b"" if self.is_thinking else None
        markers, text = self.markers, tail + piece
        while True:
            if self.is_thinking:
                _, found, rest = text.partition(markers.close)
                if not found:
                    return text[-len(markers.close) + 1 :] if len(markers.close) > 1 else b""
                self.is_thinking, self.num_tokens, text = False, self._num_pushed, rest
            text = text.lstrip()
            opened = next((one for one in markers.opens if text.startswith(one)), None)
            if opened is None:
                is_undecided = any(one.startswith(text) for one in markers.opens)
                return text if is_undecided else None
            self.is_thinking, text = True, text[len(opened) :]
