"""A trie of the vocabulary: find the tokens that begin at a position of a text."""

from bisect import bisect_left
from collections.abc import Collection
from functools import cached_property


class _Node:
    """The tokens `low : high` of the sorted vocabulary, which share their first `depth` symbols.

    `token` is the token that ends here; `children` is None until the node is expanded.
    """

    __slots__ = ("children", "depth", "high", "low", "token")

    def __init__(self, low: int, high: int, depth: int) -> None:
        self.low, self.high, self.depth = low, high, depth
        self.token: str | None = None
        self.children: dict[str, _Node] | None = None


class Trie:
    """Tokens as strings of symbols; in byte-level vocabularies a symbol is a byte.

    The vocabulary is sorted at the first lookup, and nodes are expanded by bisection when a lookup
    first reaches them, so memory grows with the part of the vocabulary that texts use.
    """

    def __init__(self, tokens: Collection[str]) -> None:
        self._unsorted = tokens
        self._longest = max(map(len, tokens), default=0)
        self._root = _Node(0, len(tokens), 0)

    @cached_property
    def _tokens(self) -> list[str]:
        return sorted(self._unsorted)

    def prefixes(self, text: str, start: int) -> list[str]:
        """Return the tokens that are prefixes of `text[start:]`, shortest first."""
        found: list[str] = []
        node = self._root
        for symbol in text[start : start + self._longest]:
            children = node.children
            if children is None:
                children = self._grow(node)
            if symbol not in children:
                break
            node = children[symbol]
            if node.token is not None:
                found.append(node.token)
        return found

    def _grow(self, node: _Node) -> dict[str, _Node]:
        tokens, depth = self._tokens, node.depth
        node.children = children = {}
        low = node.low
        while low < node.high:
            if len(tokens[low]) == depth:  # the token that ends at `node` itself
                low += 1
                continue
            symbol = tokens[low][depth]
            high = self._end(tokens[low][: depth + 1], low, node.high)
            children[symbol] = child = _Node(low, high, depth + 1)
            if len(tokens[low]) == depth + 1:
                child.token = tokens[low]
            low = high
        return children

    def _end(self, prefix: str, low: int, high: int) -> int:
        """Return the first index after `low` whose token does not begin with `prefix`."""
        last = ord(prefix[-1])
        if last == 0x10FFFF:
            return high
        return bisect_left(self._tokens, prefix[:-1] + chr(last + 1), low, high)
