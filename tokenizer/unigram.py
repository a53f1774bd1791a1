"""Unigram segmentation: the sequence of pieces with the highest sum of scores."""

import math
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from swiftchat.tokenizer.trie import Trie

__all__ = ["UNKNOWN_PENALTY", "Unigram"]

# How much worse than the worst piece an unknown character is.
UNKNOWN_PENALTY = 10.0
_MOST_WORDS = 1 << 14
_LONGEST_WORD = 32

Edge = tuple[int, int, float]


class Unigram:
    """Viterbi's algorithm over the pieces that begin at each place, O(text · longest piece).

    Of two ways equally good the one found first wins, which is the one with the longest last
    piece. Sums are rounded as the reference rounds them, or ties would fall differently:
    SentencePiece from 0.2.2 on adds in float32 from the beginning of the text, so that a text
    cannot be cut into words first; `tokenizers` adds in float64, word by word.
    (Kudo 2018, "Subword Regularization"; `EncodeOptimized` of SentencePiece.)
    """

    def __init__(
        self,
        scores: Mapping[str, float],
        unknown_score: float,
        precision: Literal["f", "d"],
        words: re.Pattern[str] | None = None,
    ) -> None:
        """Take the pieces' `scores`, and that of a character without a piece of its own.

        `precision` is that of the sums, as `array` calls it. No piece may cross a cut between
        two matches of `words`; which pieces a word has is remembered, bounded.
        """
        self._words = words
        self._known: dict[str, list[Edge]] = {}
        self._scores = scores
        self._trie = Trie(scores)
        self._unknown_score = unknown_score
        self._precision = precision

    def split(self, text: str) -> Iterable[str]:
        """Return the pieces, and the characters without a piece, that spell `text`."""
        # Rounding is what storing into the array does. It keeps the order, so a sum that is
        # not greater before it is not greater after it, and is never stored.
        best = array(self._precision, [-math.inf]) * (len(text) + 1)
        came_from = array("q", [0]) * (len(text) + 1)
        best[0] = 0.0
        base = 0
        for word in self._words.findall(text) if self._words else (text,):
            edges = self._known.get(word)
            for start, end, score in self._edges(word) if edges is None else edges:
                total, rival = best[base + start] + score, best[base + end]
                if total > rival:
                    best[base + end] = total
                    if best[base + end] > rival:
                        came_from[base + end] = base + start
            base += len(word)
        pieces: list[str] = []
        end = len(text)
        while end:
            start = came_from[end]
            pieces.append(text[start:end])
            end = start
        pieces.reverse()
        return pieces

    def _edges(self, word: str) -> Iterable[Edge]:
        """Start, end and score of each piece in `word`, by start, and of unknown characters."""
        if len(word) > _LONGEST_WORD:
            return self._walk(word)
        if len(self._known) >= _MOST_WORDS:
            self._known.clear()
        self._known[word] = edges = list(self._walk(word))
        return edges

    def _walk(self, word: str) -> Iterator[Edge]:
        scores = self._scores
        for start in range(len(word)):
            pieces = self._trie.prefixes(word, start)
            if not pieces or len(pieces[0]) > 1:
                yield start, start + 1, self._unknown_score
            for piece in pieces:
                yield start, start + len(piece), scores[piece]
