"""SentencePiece's BPE: merges in the order of the scores of their results."""

import re
from collections.abc import Iterable, Iterator, Mapping, Set

from swiftchat.tokenizer.core.bpe import BytePairEncoding, MergeRanks, merge_with_heap

# Separates the halves of a pair; no piece contains it.
_SEPARATOR = "\U0010ffff"


class SentencePieceBpe:
    """Splits normalized text into pieces, as `bpe::Model::Encode` of SentencePiece.

    User-defined pieces are matched first and never merged. The rest is split by
    `BytePairEncoding`; characters that are not pieces take part if a piece contains them.

    An unused piece is merged and finally split again into the pair that was considered last
    anywhere in the text. Vocabularies with unused pieces are therefore merged in full, O(n log n).
    """

    def __init__(
        self, scores: Mapping[str, float], user_defined: Iterable[str], unused: Set[str]
    ) -> None:
        """Take the scores of all pieces, `user_defined` and `unused` ones included."""
        user_defined = set(user_defined)
        # Most unused pieces are placeholders that no merge produces.
        self._unused = frozenset(piece for piece in unused if _can_be_made(piece, scores))
        excluded = user_defined | (set(unused) - self._unused)
        scores = {piece: score for piece, score in scores.items() if piece not in excluded}
        # The highest score is merged first.
        self._ranks = {piece: -score for piece, score in scores.items()}
        self._user_defined = _alternatives(user_defined)
        characters = {character for piece in scores for character in piece}
        tokens = dict.fromkeys((*scores, *characters), 0)
        self._bpe = BytePairEncoding(tokens, self._ranks)
        self.has_unused = bool(self._unused)

    def split(self, text: str) -> list[str]:
        """Return the segmentation of `text` into pieces and unknown characters."""
        if self._unused:
            return self._split_with_unused(text)
        pieces: list[str] = []
        for part, is_user_defined in self._parts(text):
            if is_user_defined:
                pieces.append(part)
            else:
                pieces += self._bpe.split(part)
        return pieces

    def _parts(self, text: str) -> Iterator[tuple[str, bool]]:
        start = 0
        if self._user_defined is not None:
            for match in self._user_defined.finditer(text):
                if start < match.start():
                    yield text[start : match.start()], False
                yield match[0], True
                start = match.end()
        if start < len(text):
            yield text[start:], False

    def _split_with_unused(self, text: str) -> list[str]:
        halves: dict[str, tuple[str, str]] = {}
        recorder = _HalvesRecorder(self._ranks, self._unused, halves)
        merged: list[str] = []
        for part, is_user_defined in self._parts(text):
            if is_user_defined:
                merged.append(part)
            else:
                merged += merge_with_heap(list(part), recorder, _SEPARATOR)
        pieces: list[str] = []
        merged.reverse()
        while merged:
            piece = merged.pop()
            if piece in self._unused and piece in halves:
                merged += reversed(halves[piece])
            else:
                pieces.append(piece)
        return pieces


class _HalvesRecorder:
    """`MergeRanks` that record the last pair considered for each unused piece."""

    def __init__(
        self, ranks: MergeRanks, unused: frozenset[str], halves: dict[str, tuple[str, str]]
    ) -> None:
        self._ranks, self._unused, self._halves = ranks, unused, halves

    def get(self, pair: str, default: float, /) -> float:
        left, _, right = pair.partition(_SEPARATOR)
        piece = left + right
        if piece in self._unused:
            self._halves[piece] = left, right
        return self._ranks.get(piece, default)


def _can_be_made(piece: str, scores: Mapping[str, float]) -> bool:
    """Return whether `piece` is the concatenation of two pieces or characters."""
    return any(
        all(len(half) == 1 or half in scores for half in (piece[:at], piece[at:]))
        for at in range(1, len(piece))
    )


def _alternatives(texts: Iterable[str]) -> re.Pattern[str] | None:
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
