"""Byte-pair encoding of one word: the exact result of merging by rank, in linear time."""

import math
import re
from collections.abc import Mapping
from heapq import heappop, heappush
from itertools import pairwise
from typing import Protocol

from swiftchat.tokenizer.core.trie import Trie

_MAX_CACHED_PAIRS = 1 << 20
# Up to this many symbols, merging is faster than the search over the trie.
_MAX_DIRECT_MERGE = 32
_NEVER = math.inf


class MergeRanks(Protocol):
    """Ranks of pairs, keyed by `left + separator + right`; the lowest rank is merged first.

    Strings as keys instead of pairs make a dict faster to build. Without a separator, pairs that
    make the same token have the same rank.
    """

    def get(self, pair: str, default: float, /) -> float: ...


class BytePairEncoding:
    """Splits a word, a string of symbols, into tokens exactly as merging by rank does.

    Merging joins the adjacent pair of lowest rank, the leftmost of equals, until no pair has a
    rank. Two tokens are compatible if merging their concatenation gives the two back. A sequence
    in which all neighbors are compatible is the result of merging the word, and there is only
    one. It is found without merging: take the longest token that begins here and is compatible
    with the one before, else a shorter one, else backtrack. The tokens before a position depend
    only on the text before it, so a position that failed once is dead and each position is
    visited at most once.

    The idea of compatible pairs with backtracking is from the Rust crate `bpe` (rust-gems).
    """

    def __init__(
        self,
        vocab: Mapping[str, int],
        ranks: MergeRanks,
        separator: str = "",
        *,
        unknown: str | None = None,
        fuse_unknown: bool = False,
        ignore_merges: bool = False,
    ) -> None:
        """Build from token → id and `left + separator + right` → rank.

        The result of every merge must be in `vocab`. A symbol outside `vocab` becomes `unknown`
        (with `fuse_unknown` a run of them becomes one), or is dropped if `unknown` is None. With
        `ignore_merges` a word that is a token stays whole even if merging does not produce it.
        """
        self._vocab = vocab
        self._ranks = ranks
        self._separator = separator
        self._ignore_merges = ignore_merges
        self._trie = Trie(vocab)
        symbols = "".join(token for token in vocab if len(token) == 1)
        # An empty character class is invalid; without symbols all text is unknown.
        outside = f"[^{re.escape(symbols)}]" if symbols else r"[\s\S]"
        self._unknown_symbols = re.compile(outside + ("+" if fuse_unknown else ""))
        self._unknown_id = None if unknown is None else vocab[unknown]
        self._fits: dict[tuple[str, str], bool] = {}

    def encode(self, word: str) -> list[int]:
        """Return the ids of `word`."""
        whole = self._vocab.get(word)
        if whole is not None and (self._ignore_merges or self._is_compatible("", word)):
            return [whole]
        if self._unknown_symbols.search(word) is None:
            return self._encode_known(word)
        if self._unknown_id is None:
            return self._encode_known(self._unknown_symbols.sub("", word))
        return self._encode_around_unknown(word, self._unknown_id)

    def split(self, word: str) -> list[str]:
        """Return the tokens of `word`; a symbol outside the vocabulary stays a token of its own."""
        tokens: list[str] = []
        start = 0
        for match in self._unknown_symbols.finditer(word):
            tokens += self._split(word[start : match.start()])
            tokens.append(match[0])
            start = match.end()
        return tokens + self._split(word[start:])

    def _encode_around_unknown(self, word: str, unknown_id: int) -> list[int]:
        ids: list[int] = []
        start = 0
        for match in self._unknown_symbols.finditer(word):
            ids += self._encode_known(word[start : match.start()])
            ids.append(unknown_id)
            start = match.end()
        return ids + self._encode_known(word[start:])

    def _encode_known(self, word: str) -> list[int]:
        vocab = self._vocab
        return [vocab[token] for token in self._split(word)]

    def _split(self, word: str) -> list[str]:
        if len(word) <= _MAX_DIRECT_MERGE:
            return merge(list(word), self._ranks, self._separator)
        fits, prefixes = self._fits, self._trie.prefixes
        tokens: list[str] = []
        shorter: list[list[str]] = []  # for each of `tokens`, the candidates not yet tried
        dead = bytearray(len(word) + 1)
        start, previous = 0, ""
        candidates = prefixes(word, 0)
        while start < len(word):
            while candidates:
                token = candidates.pop()
                end = start + len(token)
                if dead[end]:
                    continue
                fit = fits.get((previous, token))
                if fit is None:
                    fit = self._is_compatible(previous, token)
                if fit:
                    tokens.append(token)
                    shorter.append(candidates)
                    start, previous = end, token
                    candidates = prefixes(word, end)
                    break
            else:
                dead[start] = 1
                start -= len(tokens.pop())
                candidates = shorter.pop()
                previous = tokens[-1] if tokens else ""
        return tokens

    def _is_compatible(self, left: str, right: str) -> bool:
        """Return whether merging `left + right` gives `left, right` (`right` for an empty left)."""
        pair = (left, right)
        answer = self._fits.get(pair)
        if answer is None:
            expected = [left, right] if left else [right]
            if len(self._fits) >= _MAX_CACHED_PAIRS:
                self._fits.clear()
            merged = merge(list(left + right), self._ranks, self._separator)
            self._fits[pair] = answer = merged == expected
        return answer


def merge(symbols: list[str], ranks: MergeRanks, separator: str = "") -> list[str]:
    """Merge the pair of lowest rank, the leftmost of equals, until no pair has a rank."""
    if len(symbols) > _MAX_DIRECT_MERGE:
        return merge_with_heap(symbols, ranks, separator)
    rank_of = ranks.get
    waiting = [rank_of(left + separator + right, _NEVER) for left, right in pairwise(symbols)]
    while waiting and (best := min(waiting)) < _NEVER:
        at = waiting.index(best)
        joined = symbols[at] + symbols[at + 1]
        symbols[at : at + 2] = [joined]
        del waiting[at]
        if at:
            waiting[at - 1] = rank_of(symbols[at - 1] + separator + joined, _NEVER)
        if at < len(waiting):
            waiting[at] = rank_of(joined + separator + symbols[at + 1], _NEVER)
    return symbols


def merge_with_heap(symbols: list[str], ranks: MergeRanks, separator: str = "") -> list[str]:
    """Merge as `merge` does, with a heap in O(n log n); a result takes its left part's index."""
    after = list(range(1, len(symbols) + 1))
    before = list(range(-1, len(symbols) - 1))
    heap: list[tuple[float, int, str, str]] = []

    def push_pair(at: int) -> None:
        if at < 0 or after[at] >= len(symbols):
            return
        left, right = symbols[at], symbols[after[at]]
        rank = ranks.get(left + separator + right, _NEVER)
        if rank < _NEVER:
            heappush(heap, (rank, at, left, right))

    for index in range(len(symbols)):
        push_pair(index)
    while heap:
        _, at, left, right = heappop(heap)
        right_at = after[at]
        # Stale entry: one side has been merged since.
        if right_at >= len(symbols) or symbols[at] != left or symbols[right_at] != right:
            continue
        symbols[at], symbols[right_at] = left + right, ""
        after[at] = after[right_at]
        if after[at] < len(symbols):
            before[after[at]] = at
        push_pair(before[at])
        push_pair(at)
    return [symbol for symbol in symbols if symbol]
