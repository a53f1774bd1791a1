"""SentencePiece's precompiled rules of normalisation: which characters become which."""

import re
import struct
from collections.abc import Iterator

import regex

from swiftchat.errors import BadModelFile

__all__ = ["Charsmap"]

_MOST_RULES = 1 << 20
_LONGEST_KEY_BYTES = 64
# From this many bytes on `tokenizers` takes a grapheme apart instead of looking it up.
_LONG_GRAPHEME_BYTES = 6
_GRAPHEMES = regex.compile(r"\X")


class Charsmap:
    """Replacements by key, one or several characters long."""

    def __init__(self, blob: bytes) -> None:
        """Unpack the rules; raises `BadModelFile` when `blob` is not in their format.

        It is the size of a trie, the trie, and the replacements, each ended by a zero byte;
        the trie's values are their places. Nothing at all stands for no rules.
        """
        self.rules: dict[str, str] = {}
        if blob:
            self._unpack(blob)
        self._longest = max(map(len, self.rules), default=0)
        self._graphemes: dict[str, str] = {}

    def _unpack(self, blob: bytes) -> None:
        size = struct.unpack("<I", blob[:4])[0] if len(blob) >= 4 else 0
        if size % 4 or not 0 < size <= len(blob) - 4:
            raise BadModelFile("the tokenizer's charsmap is cut off")
        units = struct.unpack(f"<{size // 4}I", blob[4 : 4 + size])
        texts = blob[4 + size :]
        for key, place in _keys(units):
            if place >= len(texts):
                raise BadModelFile("the tokenizer's charsmap points outside itself")
            end = texts.find(b"\0", place)
            try:
                self.rules[key.decode()] = texts[place : end if end >= 0 else None].decode()
            except UnicodeDecodeError:
                raise BadModelFile("the tokenizer's charsmap is no UTF-8") from None

    def pattern(self) -> str:
        """A regular expression for where a key may begin; `longest` says whether one does.

        A character begins one if it is a key itself, or the first of a longer key and followed
        by one that is in a longer key. What plain text is made of is passed over at C speed.
        """
        longer = [key for key in self.rules if len(key) > 1]
        alone = _class(key for key in self.rules if len(key) == 1)
        first, rest = _class(key[0] for key in longer), _class(key[1] for key in longer)
        either = "|".join(filter(None, (alone, first and f"{first}(?={rest})")))
        ends = {key[0] for key in self.rules if len(key) == 1}.union(*(key[1:] for key in longer))
        # `re` goes through large classes range by range; two plain characters need neither.
        plain = either and not any(" " <= character <= "~" for character in ends)
        return f"(?![ -~][ -~])(?:{either})" if plain else either

    def longest(self, text: str, start: int) -> str | None:
        """The longest key with which `text[start:]` begins."""
        for end in range(min(start + self._longest, len(text)), start, -1):
            if text[start:end] in self.rules:
                return text[start:end]
        return None

    def replace_graphemes(self, text: str) -> str:
        """Replace as `tokenizers` does, which is not what SentencePiece does.

        It looks at graphemes. A short one, with any key at its beginning, becomes what the
        shortest such key stands for; of others each character is replaced by itself.
        """
        known = self._graphemes
        if len(known) > 1 << 16:
            known.clear()
        parts: list[str] = []
        for grapheme in _GRAPHEMES.findall(text):
            part = known.get(grapheme)
            if part is None:
                part = self._replaced(grapheme)
                if len(grapheme) <= _LONGEST_KEY_BYTES:
                    known[grapheme] = part
            parts.append(part)
        return "".join(parts)

    def _replaced(self, grapheme: str) -> str:
        if len(grapheme.encode()) < _LONG_GRAPHEME_BYTES:
            for end in range(1, len(grapheme) + 1):
                if grapheme[:end] in self.rules:
                    return self.rules[grapheme[:end]]
        return "".join(self.rules.get(character, character) for character in grapheme)


def _class(characters: Iterator[str] | set[str]) -> str:
    members = "".join(map(re.escape, sorted(set(characters))))
    return members and f"[{members}]"


def _keys(units: tuple[int, ...]) -> Iterator[tuple[bytes, int]]:
    """Keys and values of a double array as Darts-clone writes it.

    The children of a node lie at its base xor their label. So each unit tells its parent's
    base, and one pass over the units finds all children: O(units), where trying every label
    at every node would take 256 times that.
    """
    children: dict[int, list[int]] = {}
    for index, unit in enumerate(units):
        # A label of zero is a value, which its parent knows of; index 0 is the root.
        if index and unit < 0x8000_0000 and unit & 0xFF:
            children.setdefault(index ^ (unit & 0xFF), []).append(index)
    waiting = [(0, b"")]
    seen = 0
    while waiting:
        node, key = waiting.pop()
        unit = units[node]
        base = node ^ ((unit >> 10) << ((unit & 0x200) >> 6))
        if unit >> 8 & 1 and base < len(units):
            yield key, units[base] & 0x7FFF_FFFF
        # Units nobody made may lead in circles.
        seen += 1
        if seen > _MOST_RULES or len(key) > _LONGEST_KEY_BYTES:
            raise BadModelFile("the tokenizer's charsmap has absurdly many or long rules")
        waiting += [(child, key + bytes((units[child] & 0xFF,)))
                    for child in children.get(base, ())]  # fmt: skip
