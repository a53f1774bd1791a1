"""Unigram segmentation: the sequence of pieces with the highest sum of scores."""

import math
from collections.abc import Iterator, Mapping
from decimal import Decimal

from swiftchat.tokenizer.core.trie import Trie

# Score of an unknown character, below that of the worst piece.
UNKNOWN_PENALTY = 10.0


class Unigram:
    """Viterbi search over the pieces that begin at each position, O(word · longest piece).

    Of equal scores the first found wins, which has the longest last piece. Sums are float64 and
    start at the word, as in `tokenizers`; `SentencePieceUnigram` sums in float32.
    (Kudo 2018, "Subword Regularization"; `Unigram::encode_optimized` of `tokenizers`.)
    """

    def __init__(self, scores: Mapping[str, float], unknown_score: float) -> None:
        """Take the scores of the pieces and the score of an unknown character."""
        self._scores = scores
        self._trie = Trie(scores)
        self._unknown_score = unknown_score

    def edges(self, word: str) -> Iterator[tuple[int, int, float]]:
        """Yield `(start, end, score)` of pieces and unknown characters, ordered by start."""
        scores, prefixes = self._scores, self._trie.prefixes
        for start in range(len(word)):
            pieces = prefixes(word, start)
            if not pieces or len(pieces[0]) > 1:
                yield start, start + 1, self._unknown_score
            for piece in pieces:
                yield start, start + len(piece), scores[piece]

    def split(self, word: str) -> list[str]:
        """Return the best segmentation of `word` into pieces and unknown characters."""
        best = [-math.inf] * (len(word) + 1)
        best[0] = 0.0
        came_from = [0] * (len(word) + 1)
        for start, end, score in self.edges(word):
            total = best[start] + score
            if total > best[end]:
                best[end], came_from[end] = total, start
        return backtrack(word, came_from)

    def split_if_unambiguous(self, word: str, error: float) -> list[str] | None:
        """Return the result of `split`, or None if rounding could change it.

        Each addition has an error of at most `error`, so a sum at a position is wrong by at most
        `error` times the number of characters before it.
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
        return backtrack(word, came_from)


def backtrack(word: str, came_from: list[int]) -> list[str]:
    """Return the pieces of `word`, given the start of the best piece that ends at each index."""
    pieces: list[str] = []
    end = len(word)
    while end:
        start = came_from[end]
        pieces.append(word[start:end])
        end = start
    pieces.reverse()
    return pieces


def score_as_tokenizers_parses_it(score: float) -> float:
    """Return the float64 that `tokenizers` parses from the shortest decimal form of `score`.

    Its JSON parser divides the digits, as an integer, by a power of ten and rounds each. Ties such
    as "-- -" and "- --" depend on it. (`f64_from_parts` of serde_json without `float_roundtrip`.)
    """
    sign, digits, exponent = Decimal(repr(score)).as_tuple()
    number = float(int("".join(map(str, digits))))
    power = float(f"1e{abs(int(exponent))}")
    number = number * power if int(exponent) >= 0 else number / power
    return -number if sign else number
