"""The `Precompiled` normalizer of `tokenizer.json`: SentencePiece's character map.

The `sentencepiece` library cannot replace it: `tokenizers` applies the same map to whole
graphemes and takes the shortest match, `sentencepiece` takes the longest match at each character.
"""

import struct
from collections.abc import Iterator

import regex

from swiftchat.errors import BadModelFile

_MAX_CACHED = 1 << 16
_MAX_CACHED_CHARACTERS = 32
# From this many bytes on `tokenizers` replaces the characters of a grapheme one by one.
_LONG_GRAPHEME_BYTES = 6
_MAX_TEXT_BYTES = 256  # Unicode's own compatibility forms have up to 33
_GRAPHEMES = regex.compile(r"\X")


class PrecompiledCharsmap:
    """Replacements by key of one or more characters, searched in place.

    The blob is the size of a trie in bytes (uint32), the trie as a Darts-clone double array over
    the UTF-8 bytes of the keys, and the replacements, each ended by a zero byte. The values of the
    trie are offsets of replacements. An empty blob has no replacements.
    """

    def __init__(self, blob: bytes) -> None:
        """Take the blob; raises `BadModelFile` if it is truncated."""
        size = struct.unpack("<I", blob[:4])[0] if len(blob) >= 4 else 0
        if blob and (size % 4 or not 0 < size <= len(blob) - 4):
            raise BadModelFile("the tokenizer's charsmap is truncated")
        self._units: tuple[int, ...] = struct.unpack(f"<{size // 4}I", blob[4 : 4 + size])
        self._texts = blob[4 + size :]
        self._cached: dict[str, str] = {}

    def replace_graphemes(self, text: str) -> str:
        """Normalize `text` as `tokenizers` does, O(text).

        A grapheme under 6 bytes that begins with a key becomes the replacement of its shortest
        such key. In other graphemes each character is replaced on its own.
        """
        if len(self._cached) > _MAX_CACHED:
            self._cached.clear()
        parts: list[str] = []
        for grapheme in _GRAPHEMES.findall(text):
            part = self._cached.get(grapheme)
            if part is None:
                part = self._replace(grapheme)
                if len(grapheme) <= _MAX_CACHED_CHARACTERS:
                    self._cached[grapheme] = part
            parts.append(part)
        return "".join(parts)

    def _replace(self, grapheme: str) -> str:
        if len(grapheme.encode()) < _LONG_GRAPHEME_BYTES:
            for replacement in self._replacements(grapheme):
                return replacement
        return "".join(next(self._replacements(c), c) for c in grapheme)

    def _replacements(self, text: str) -> Iterator[str]:
        """Yield the replacements of the keys that `text` begins with, shortest key first.

        Raises `BadModelFile` if an index is outside the trie.
        """
        units = self._units
        position = _child_base(0, units[0]) if units else 0
        for byte in text.encode() if units else b"":
            position ^= byte
            if position >= len(units):
                raise BadModelFile("the tokenizer's charsmap has an index outside its trie")
            unit = units[position]
            if unit & 0x8000_00FF != byte:
                return
            position = _child_base(position, unit)
            if unit >> 8 & 1:
                yield self._text(position)

    def _text(self, leaf: int) -> str:
        start = self._units[leaf] & 0x7FFF_FFFF if leaf < len(self._units) else len(self._texts)
        if start >= len(self._texts):
            raise BadModelFile("the tokenizer's charsmap has an index outside its texts")
        end = self._texts.find(b"\0", start)
        text = self._texts[start : end if end >= 0 else None]
        if len(text) > _MAX_TEXT_BYTES:
            raise BadModelFile("the tokenizer's charsmap makes a long text of a character")
        try:
            return text.decode()
        except UnicodeDecodeError:
            raise BadModelFile("the tokenizer's charsmap has invalid UTF-8") from None


def _child_base(position: int, unit: int) -> int:
    """Return the index that, xor a child's label, is the index of that child's unit."""
    return position ^ (unit >> 10 << ((unit & 0x200) >> 6))
