"""SentencePiece's Unigram: scores are summed in float32 over the whole text."""

import math
import re
from array import array
from collections.abc import Mapping
from functools import lru_cache

from swiftchat.tokenizer.core.unigram import Unigram, backtrack

_MAX_WORDS = 1 << 16
_MAX_AMBIGUOUS_WORDS = 1 << 10
_MAX_WORD_CHARACTERS = 32
# SentencePiece resets sums beyond this to zero.
_RESET = 100_000.0
# Below 2**17, which no word reaches from there, float32 rounds by at most 2**-8.
_LARGEST_SCORE = (2**17 - _RESET) / (_MAX_WORD_CHARACTERS + 2)
_ERROR = 2.0**-8

# The pieces of a word and their scores.
_Split = tuple[list[str], list[float]]


class SentencePieceUnigram:
    """`unigram::Model::EncodeOptimized` of SentencePiece from 0.2.2 on, O(text · longest piece).

    The sums are float32 from the beginning of the text, so rounding makes the best split of a word
    depend on the text before it. For almost all words the best split wins by more than any
    rounding; these are split once and cached (bounded). Only the other words need the sum before
    them, which is computed when the first of them occurs.
    """

    def __init__(
        self, scores: Mapping[str, float], unknown_score: float, words: re.Pattern[str] | None
    ) -> None:
        """Take the scores of pieces and the score of an unknown character.

        No piece crosses the border of two matches of `words`; None means no borders.
        """
        self._unigram = Unigram(scores, unknown_score)
        # For the few words that are split each time, such as lines of dashes.
        self._edges = lru_cache(_MAX_AMBIGUOUS_WORDS)(lambda word: tuple(self._unigram.edges(word)))
        self._scores = scores
        self._unknown_score = unknown_score
        self._longest = max(map(len, scores), default=1)
        largest = max(map(abs, (*scores.values(), unknown_score)))
        self._has_small_scores = largest <= _LARGEST_SCORE
        self._near_reset = _RESET - largest * (_MAX_WORD_CHARACTERS + 1)
        self._words = words
        self._known: dict[str, _Split | None] = {}

    def split(self, text: str) -> list[str]:
        """Return the best segmentation of `text` into pieces and unknown characters."""
        pieces: list[str] = []
        total = 0.0
        pending: list[tuple[str, list[float]]] = []  # words that are not yet in `total`
        for word in self._words.findall(text) if self._words else (text,):
            known = self._known[word] if word in self._known else self._split_alone(word)
            if known is None:
                total = self._add_scores(total, pending)
                pending.clear()
                found, total = self._split_exactly(word, total)
                pieces += found
            else:
                pieces += known[0]
                pending.append((word, known[1]))
        return pieces

    def _split_alone(self, word: str) -> _Split | None:
        """Return the split of `word` and cache it; None if it depends on the text before it."""
        if len(word) > _MAX_WORD_CHARACTERS or not self._has_small_scores:
            return None
        pieces = self._unigram.split_if_unambiguous(word, _ERROR)
        split = pieces and (pieces, [self._scores.get(p, self._unknown_score) for p in pieces])
        if len(self._known) >= _MAX_WORDS:
            self._known.clear()
        self._known[word] = split or None
        return split or None

    def _add_scores(self, total: float, words: list[tuple[str, list[float]]]) -> float:
        rounded = array("f", [total])
        for word, scores in words:
            if abs(total) > self._near_reset:
                rounded[0] = self._split_exactly(word, total)[1]
            else:
                for score in scores:
                    rounded[0] += score
            total = rounded[0]
        return total

    def _split_exactly(self, word: str, total: float) -> tuple[list[str], float]:
        """Return the pieces of `word`, and the total after it, given the total before it."""
        # Storing into the array rounds to float32. Rounding is monotonic, so a sum that is not
        # greater before rounding is not greater after it and need not be stored.
        best = array("f", [-math.inf]) * (len(word) + 1)
        best[0] = total
        came_from = [0] * (len(word) + 1)
        last = -1
        short = len(word) <= _MAX_WORD_CHARACTERS
        for start, end, score in self._edges(word) if short else self._unigram.edges(word):
            if start != last:
                last = start
                if abs(best[start]) > _RESET:
                    offset = best[start]
                    for place in range(start, min(start + self._longest, len(word)) + 1):
                        best[place] -= offset
            previous = best[end]
            if best[start] + score > previous:
                best[end] = best[start] + score
                if best[end] > previous:
                    came_from[end] = start
        return backtrack(word, came_from), best[-1]
