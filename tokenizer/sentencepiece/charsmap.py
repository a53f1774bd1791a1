"""SentencePiece's precompiled rules of normalization: which characters become which."""

import re
import struct
from collections.abc import Iterable, Iterator

import regex

from swiftchat.errors import BadModelFile

__all__ = ["Charsmap"]

# Characters; the rules of NFKC have up to 4.
_LONGEST_KEY = 32
# From this many bytes on `tokenizers` takes a grapheme apart instead of looking it up.
_LONG_GRAPHEME_BYTES = 6
_GRAPHEMES = regex.compile(r"\X")


class Charsmap:
    """Replacements by key, one or several characters long.

    They lie in a double array, as Darts-clone writes it, over the bytes of the keys, and are
    looked up where they lie. There are some 200,000 of them in 200 kB.
    """

    def __init__(self, blob: bytes) -> None:
        """Take the rules; raises `BadModelFile` when `blob` is not in their format.

        It is the size of a trie, the trie, and the replacements, each ended by a zero byte;
        the trie's values are their places. Nothing at all stands for no rules.
        """
        size = struct.unpack("<I", blob[:4])[0] if len(blob) >= 4 else 0
        if blob and (size % 4 or not 0 < size <= len(blob) - 4):
            raise BadModelFile("the tokenizer's charsmap is cut off")
        self._units: tuple[int, ...] = struct.unpack(f"<{size // 4}I", blob[4 : 4 + size])
        self._texts = blob[4 + size :]
        self._alone: dict[str, str] = {}
        self._graphemes: dict[str, str] = {}

    def _keys(self, text: bytes) -> Iterator[tuple[int, str]]:
        """Length in bytes and replacement of the keys with which `text` begins, shortest first.

        Raises `BadModelFile` where the trie leads out of itself.
        """
        units = self._units
        place = _base(0, units[0]) if units else 0
        for length, byte in enumerate(text if units else b"", start=1):
            place ^= byte
            if place >= len(units):
                raise BadModelFile("the tokenizer's charsmap points outside itself")
            unit = units[place]
            if unit & 0x8000_00FF != byte:
                return
            place = _base(place, unit)
            if unit >> 8 & 1:
                yield length, self._text(place)

    def _text(self, leaf: int) -> str:
        place = self._units[leaf] & 0x7FFF_FFFF if leaf < len(self._units) else len(self._texts)
        if place >= len(self._texts):
            raise BadModelFile("the tokenizer's charsmap points outside itself")
        end = self._texts.find(b"\0", place)
        return _decoded(self._texts[place : end if end >= 0 else None])

    def pattern(self) -> str:
        """A regular expression for where a key may begin; `longest` says whether one does.

        A character begins one if it is a key itself, or the first of a longer key and followed
        by one that is second in such a key. What plain text is made of is passed over at C speed.
        """
        if not self._units:
            return ""
        children = _children(self._units)
        firsts = _characters(0, self._units, children)
        after = {node: _characters(node, self._units, children) for node in set(firsts.values())}
        keys = {first for first, node in firsts.items() if self._units[node] >> 8 & 1}
        longer = {first for first, node in firsts.items() if after[node]}
        self._alone = {key: next(self._keys(key.encode()))[1] for key in keys - longer}
        seconds = {second for found in after.values() for second in found}
        alone, rest = _class(keys), _class(seconds)
        first = _class(longer)
        either = "|".join(filter(None, (alone, first and f"{first}(?={rest})")))
        # `re` goes through large classes range by range; two plain characters need neither.
        plain = either and not any(" " <= character <= "~" for character in keys | seconds)
        return f"(?![ -~][ -~])(?:{either})" if plain else either

    def longest(self, text: str, start: int) -> tuple[int, str] | None:
        """The end of the longest key with which `text[start:]` begins, and what replaces it."""
        alone = self._alone.get(text[start])
        if alone is not None:
            return start + 1, alone
        data = text[start : start + _LONGEST_KEY].encode()
        keys = list(self._keys(data))
        if not keys:
            return None
        length, replacement = keys[-1]
        return start + len(_decoded(data[:length])), replacement

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
                if len(grapheme) <= _LONGEST_KEY:
                    known[grapheme] = part
            parts.append(part)
        return "".join(parts)

    def _replaced(self, grapheme: str) -> str:
        data = grapheme.encode()
        if len(data) < _LONG_GRAPHEME_BYTES:
            for _, replacement in self._keys(data):
                return replacement
        return "".join(map(self._replaced_alone, grapheme))

    def _replaced_alone(self, character: str) -> str:
        return next((new for _, new in self._keys(character.encode())), character)


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BadModelFile("the tokenizer's charsmap is no UTF-8") from None


def _class(characters: Iterable[str]) -> str:
    members = sorted(set(characters))
    low = "".join(re.escape(member) for member in members if member <= "\uffff")
    high = "".join(re.escape(member) for member in members if member > "\uffff")
    # `re` goes through members above 0xFFFF one by one: only for such characters.
    parts = (low and f"[{low}]", high and f"(?=[\U00010000-\U0010ffff])[{high}]")
    either = "|".join(filter(None, parts))
    return either and f"(?:{either})"


def _base(place: int, unit: int) -> int:
    """Where the children of the unit lie: there, xor their label."""
    return place ^ (unit >> 10 << ((unit & 0x200) >> 6))


def _children(units: tuple[int, ...]) -> dict[int, list[int]]:
    """The units that are children, by the base of their parent.

    Each tells it: its place xor its label. A label of zero is a value.
    """
    children: dict[int, list[int]] = {}
    for place, unit in enumerate(units):
        if place and unit < 0x8000_0000 and unit & 0xFF:
            children.setdefault(place ^ (unit & 0xFF), []).append(place)
    return children


def _characters(
    node: int, units: tuple[int, ...], children: dict[int, list[int]]
) -> dict[str, int]:
    """The characters that go on from `node`, and where they lead to."""
    found: dict[str, int] = {}
    waiting = [(child, b"") for child in children.get(_base(node, units[node]), ())]
    while waiting:
        place, before = waiting.pop()
        so_far = before + bytes((units[place] & 0xFF,))
        if len(so_far) == _utf8_length(so_far[0]):
            found[_decoded(so_far)] = place
        else:
            below = children.get(_base(place, units[place]), ())
            waiting += [(child, so_far) for child in below]
    return found


def _utf8_length(first: int) -> int:
    return 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
