"""SentencePiece's Unigram: sums of scores are float32 and go on through the whole text."""

import math
import re
from array import array
from collections.abc import Mapping
from functools import lru_cache

from swiftchat.tokenizer.core.unigram import Unigram, backtrack

__all__ = ["SentencePieceUnigram"]

_MAX_WORDS = 1 << 16
_MAX_AMBIGUOUS_WORDS = 1 << 10
_MAX_WORD_CHARACTERS = 32
# Sums beyond this are taken back to zero.
_RESET = 100_000.0
# Below 2**17, which a word does not reach from there, float32 rounds by 2**-8 at most.
_LARGEST_SCORE = (2**17 - _RESET) / (_MAX_WORD_CHARACTERS + 2)
_ERROR = 2.0**-8

# The pieces of a word and their scores.
_Split = tuple[list[str], list[float]]


class SentencePieceUnigram:
    """`unigram::Model::EncodeOptimized` of SentencePiece from 0.2.2 on, O(text · longest piece).

    What is best in a word depends on what came before it, by rounding: the sums are float32
    from the beginning of the text on. In almost all words the best is better by more than
    rounding can be, whatever came before. They are split once and remembered, bounded. Only
    for the others the sum up to them is needed; it is added up when the first of them comes.
    """

    def __init__(
        self, scores: Mapping[str, float], unknown_score: float, words: re.Pattern[str] | None
    ) -> None:
        """Take the pieces' `scores`, and that of a character without a piece of its own.

        No piece crosses a cut between two matches of `words`; None is no cut at all.
        """
        self._unigram = Unigram(scores, unknown_score)
        # For the few words that are split again each time, as lines of dashes.
        self._edges = lru_cache(_MAX_AMBIGUOUS_WORDS)(lambda word: tuple(self._unigram.edges(word)))
        self._scores = scores
        self._unknown_score = unknown_score
        self._longest = max(map(len, scores), default=1)
        largest = max(map(abs, (*scores.values(), unknown_score)))
        self._is_tame = largest <= _LARGEST_SCORE
        self._near_reset = _RESET - largest * (_MAX_WORD_CHARACTERS + 1)
        self._words = words
        self._known: dict[str, _Split | None] = {}

    def split(self, text: str) -> list[str]:
        """Return the pieces, and the characters without a piece, that spell `text`."""
        pieces: list[str] = []
        total = 0.0
        waiting: list[tuple[str, list[float]]] = []  # words that are not yet in `total`
        for word in self._words.findall(text) if self._words else (text,):
            known = self._known[word] if word in self._known else self._look_at(word)
            if known is None:
                total = self._add(total, waiting)
                waiting.clear()
                found, total = self._split_exactly(word, total)
                pieces += found
            else:
                pieces += known[0]
                waiting.append((word, known[1]))
        return pieces

    def _look_at(self, word: str) -> _Split | None:
        """The pieces of `word` wherever it stands, or None if there is no such certainty."""
        if len(word) > _MAX_WORD_CHARACTERS or not self._is_tame:
            return None
        pieces = self._unigram.split_if_unambiguous(word, _ERROR)
        split = pieces and (pieces, [self._scores.get(p, self._unknown_score) for p in pieces])
        if len(self._known) >= _MAX_WORDS:
            self._known.clear()
        self._known[word] = split or None
        return split or None

    def _add(self, total: float, words: list[tuple[str, list[float]]]) -> float:
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
        """The pieces of `word` after pieces of that `total`, and the total after it."""
        # Rounding is what storing into the array does. It keeps the order, so a sum that is
        # not greater before it is not greater after it, and is never stored.
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
            rival = best[end]
            if best[start] + score > rival:
                best[end] = best[start] + score
                if best[end] > rival:
                    came_from[end] = start
        return backtrack(word, came_from), best[-1]
