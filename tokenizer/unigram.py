"""Unigram segmentation: the sequence of pieces with the highest sum of scores."""

import math
from array import array
from collections.abc import Iterable, Mapping
from typing import Literal

from swiftchat.tokenizer.trie import Trie

__all__ = ["UNKNOWN_PENALTY", "Unigram"]

# How much worse than the worst piece an unknown character is.
UNKNOWN_PENALTY = 10.0


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
    ) -> None:
        """Take the pieces' `scores`, and that of a character without a piece of its own.

        `precision` is that of the sums, as `array` calls it.
        """
        self._scores = scores
        self._trie = Trie(scores)
        self._unknown_score = unknown_score
        self._precision = precision

    def split(self, text: str) -> Iterable[str]:
        """Return the pieces, and the characters without a piece, that spell `text`."""
        scores, prefixes = self._scores, self._trie.prefixes
        # Rounding is what storing into the array does. It keeps the order, so a sum that is
        # not greater before it is not greater after it, and is never stored.
        best = array(self._precision, [-math.inf]) * (len(text) + 1)
        came_from = array("q", [0]) * (len(text) + 1)
        best[0] = 0.0
        for start in range(len(text)):
            here = best[start]
            has_single = False
            for piece in prefixes(text, start):
                length = len(piece)
                if length == 1:
                    has_single = True
                end = start + length
                total, rival = here + scores[piece], best[end]
                if total > rival:
                    best[end] = total
                    if best[end] > rival:
                        came_from[end] = start
            if not has_single:
                total, rival = here + self._unknown_score, best[start + 1]
                if total > rival:
                    best[start + 1] = total
                    if best[start + 1] > rival:
                        came_from[start + 1] = start
        pieces: list[str] = []
        end = len(text)
        while end:
            start = came_from[end]
            pieces.append(text[start:end])
            end = start
        pieces.reverse()
        return pieces
