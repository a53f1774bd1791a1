"""Unigram segmentation: the sequence of pieces with the highest sum of scores."""

import math
from collections.abc import Iterator, Mapping
from decimal import Decimal

from swiftchat.tokenizer.core.trie import Trie

__all__ = ["UNKNOWN_PENALTY", "Unigram", "score_as_tokenizers_reads_it"]

# How much worse than the worst piece an unknown character is.
UNKNOWN_PENALTY = 10.0


class Unigram:
    """Viterbi's algorithm over the pieces that begin at each place, O(word · longest piece).

    Of two ways equally good the one found first wins, which is the one with the longest last
    piece. Sums are float64 and begin with the word, as in `tokenizers`; `SentencePieceUnigram`
    adds otherwise.
    (Kudo 2018, "Subword Regularization"; `Unigram::encode_optimized` of `tokenizers`.)
    """

    def __init__(self, scores: Mapping[str, float], unknown_score: float) -> None:
        """Take the pieces' `scores`, and that of a character without a piece of its own."""
        self._scores = scores
        self._trie = Trie(scores)
        self._unknown_score = unknown_score

    def edges(self, word: str) -> Iterator[tuple[int, int, float]]:
        """Start, end and score of each piece in `word`, by start, and of unknown characters."""
        scores, prefixes = self._scores, self._trie.prefixes
        for start in range(len(word)):
            pieces = prefixes(word, start)
            if not pieces or len(pieces[0]) > 1:
                yield start, start + 1, self._unknown_score
            for piece in pieces:
                yield start, start + len(piece), scores[piece]

    def split(self, word: str) -> list[str]:
        """Return the pieces, and the characters without a piece, that spell `word`."""
        best = [-math.inf] * (len(word) + 1)
        best[0] = 0.0
        came_from = [0] * (len(word) + 1)
        for start, end, score in self.edges(word):
            total = best[start] + score
            if total > best[end]:
                best[end], came_from[end] = total, start
        return way_back(word, came_from)

    def split_surely(self, word: str, error: float) -> list[str] | None:
        """Return what `split` does, or None if it is not the best by more than rounding.

        Each addition may be wrong by up to `error`, so of two sums at a place each by that
        times the number of characters before it.
        """
        best = [-math.inf] * (len(word) + 1)
        second = best.copy()
        best[0] = 0.0
        came_from = [0] * (len(word) + 1)
        for start, end, score in self.edges(word):
            total = best[start] + score
            if total > best[end]:
                second[end] = best[end]
                best[end], came_from[end] = total, start
            elif total > second[end]:
                second[end] = total
        end = len(word)
        while end:
            if best[end] - second[end] <= 2 * error * end:
                return None
            end = came_from[end]
        return way_back(word, came_from)


def way_back(word: str, came_from: list[int]) -> list[str]:
    """The pieces of `word`, of which each begins where its end `came_from`."""
    pieces: list[str] = []
    end = len(word)
    while end:
        start = came_from[end]
        pieces.append(word[start:end])
        end = start
    pieces.reverse()
    return pieces


def score_as_tokenizers_reads_it(score: float) -> float:
    """The number that `tokenizers` makes of this one's shortest spelling, which is near it.

    Its JSON parser takes the digits for an integer and divides it by a power of ten, each
    rounded. As all files have the shortest spelling, ties like "-- -" and "- --" depend on it.
    (`f64_from_parts` of serde_json without `float_roundtrip`.)
    """
    sign, digits, exponent = Decimal(repr(score)).as_tuple()
    number = float(int("".join(map(str, digits))))
    power = float(f"1e{abs(int(exponent))}")
    number = number * power if int(exponent) >= 0 else number / power
    return -number if sign else number
