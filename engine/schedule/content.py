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


def block_digests(parent: Digest, tokens: Sequence[int], block_size: int) -> Iterator[Digest]:
    """Yield the identity of each full block of the tokens, of which the first follows `parent`."""
    packed = array("i", tokens)
    content, block_bytes = packed.tobytes(), block_size * packed.itemsize
    for end in range(block_bytes, len(content) + 1, block_bytes):
        parent = hashlib.sha256(parent + content[end - block_bytes : end]).digest()
        yield parent


class ContentIndex(Generic[T]):
    """Finds values by the content of blocks: (digest of what precedes, tokens)."""

    def __init__(self) -> None:
        self._values: dict[Digest, T] = {}
        self._children: dict[Digest, dict[tuple[int, ...], T]] = {}

    def __iter__(self) -> Iterator[T]:
        return iter(self._values.values())

    def find(self, digest: Digest) -> T | None:
        """Return the value of the block with this `content_digest`."""
        return self._values.get(digest)

    def get(self, parent: Digest, tokens: Sequence[int]) -> T | None:
        return self._values.get(content_digest(parent, tokens))

    def add(self, parent: Digest, tokens: Sequence[int], value: T) -> None:
        self._values[content_digest(parent, tokens)] = value
        self._children.setdefault(parent, {})[tuple(tokens)] = value

    def remove(self, parent: Digest, tokens: Sequence[int]) -> None:
        """Remove a value; raises `KeyError` if there is none."""
        del self._values[content_digest(parent, tokens)]
        siblings = self._children[parent]
        del siblings[tuple(tokens)]
        if not siblings:
            del self._children[parent]

    def longest(self, parent: Digest, tokens: Sequence[int]) -> tuple[T, int] | None:
        """Return the value whose tokens have the longest common prefix, and its length above 0."""
        siblings, key = self._children.get(parent, {}), tuple(tokens)
        if key in siblings:
            return siblings[key], len(key)
        best: tuple[T, int] | None = None
        for found, value in siblings.items():
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
