"""The identity of a KV block's content: a digest of all tokens up to the end of the block."""

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")

Digest = bytes
"""SHA-256 of everything that keys and values up to some position depend on."""

ROOT: Digest = bytes(32)
"""What precedes the first block, if keys and values depend only on earlier tokens."""


def root_of(bidirectional_prefix: Sequence[int] = (), tuning: Digest | None = None) -> Digest:
    """Return what precedes the first block.

    Keys and values in a bidirectional prefix depend on the whole prefix. `tuning` is the digest of
    adapters and a soft prompt. Whatever else they depend on belongs here too: the digests of all
    blocks follow from this one, in the prefix cache, in host memory and on disk.
    """
    root = ROOT if tuning is None else hashlib.sha256(ROOT + tuning).digest()
    return content_digest(root, bidirectional_prefix) if bidirectional_prefix else root


def content_digest(parent: Digest, tokens: Sequence[int]) -> Digest:
    """Return the identity of the block with these tokens after `parent`."""
    return hashlib.sha256(parent + array("i", tokens).tobytes()).digest()


class ContentIndex(Generic[T]):
    """Finds values by the content of blocks: (digest of what precedes, tokens)."""

    def __init__(self) -> None:
        # By parent and tokens, with the block's digest: to compute it would take a search longer.
        self._children: dict[Digest, dict[tuple[int, ...], tuple[T, Digest]]] = {}

    def __iter__(self) -> Iterator[T]:
        return (value for siblings in self._children.values() for value, _ in siblings.values())

    def get(self, parent: Digest, tokens: Sequence[int]) -> T | None:
        found = self._children.get(parent, {}).get(tuple(tokens))
        return None if found is None else found[0]

    def add(self, parent: Digest, tokens: Sequence[int], value: T) -> Digest:
        """Add a value, or replace that of the same content; return the block's digest."""
        digest = content_digest(parent, tokens)
        self._children.setdefault(parent, {})[tuple(tokens)] = value, digest
        return digest

    def remove(self, parent: Digest, tokens: Sequence[int]) -> None:
        """Remove a value; raises `KeyError` if there is none."""
        siblings = self._children[parent]
        del siblings[tuple(tokens)]
        if not siblings:
            del self._children[parent]

    def prefix(
        self, root: Digest, tokens: Sequence[int], block_size: int
    ) -> tuple[list[T], Digest]:
        """Return the values of the first full blocks of the tokens, and the last block's digest.

        They end before the first block without a value; the first one follows `root`.
        """
        values, parent = list[T](), root
        for end in range(block_size, len(tokens) + 1, block_size):
            found = self._children.get(parent, {}).get(tuple(tokens[end - block_size : end]))
            if found is None:
                break
            value, parent = found
            values.append(value)
        return values, parent

    def longest(self, parent: Digest, tokens: Sequence[int]) -> tuple[T, int] | None:
        """Return the value whose tokens have the longest common prefix, and its length above 0."""
        siblings, key = self._children.get(parent, {}), tuple(tokens)
        if same := siblings.get(key):
            return same[0], len(key)
        best: tuple[T, int] | None = None
        for found, (value, _) in siblings.items():
            length = common_length(found, key)
            if length > (best[1] if best else 0):
                best = value, length
        return best


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the number of first elements in which two sequences agree."""
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length
