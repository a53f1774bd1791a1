"""Spaces as ▁: where words are cut, and how spaces come back in decoding."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from swiftchat.tokenizer.core.piece_ids import PieceKind

__all__ = [
    "Metaspace",
    "byte_of",
    "first_token_reader",
    "sentencepiece_reader",
    "stripping_reader",
    "word_pattern",
]

_BYTE = re.compile("<0x([0-9A-F]{2})>")


@dataclass(frozen=True)
class Metaspace:
    """The pre-tokenizer of that name of `tokenizers`: write spaces as `symbol`, cut before each.

    `prepend` puts one in front of text that does not begin with one: "always", "never", or
    only at the very beginning ("first").
    """

    symbol: str = "▁"
    prepend: str = "always"
    split: bool = True

    def __call__(self, text: str, at_start: bool) -> Iterable[str]:
        text = text.replace(" ", self.symbol)
        prepends = self.prepend == "always" or (self.prepend == "first" and at_start)
        if prepends and not text.startswith(self.symbol):
            text = self.symbol + text
        if not self.split:
            return (text,)
        symbol = re.escape(self.symbol)
        return filter(None, re.findall(f"{symbol}[^{symbol}]*|[^{symbol}]+", text))


def word_pattern(tokens: Iterable[str], *, around_loners: bool = False) -> re.Pattern[str] | None:
    """A pattern whose matches can be merged one by one, or None where there is no such cut.

    Cutting where no token has these two characters next to each other changes nothing. In most
    vocabularies ▁ stands at the beginning of tokens only, in some at the end only. A loner is
    a character that is in no token with another; most Chinese ones are, where that is not the
    model's language. Cutting there parts what is unknown, too.
    """
    inside = {token for token in tokens if "▁" in token}
    social = {character for token in tokens if len(token) > 1 for character in token} - {"▁"}
    if around_loners and social:
        members = "".join(map(re.escape, sorted(social)))
        loner, others = f"[^▁{members}]", f"[{members}]"
    else:
        loner, others = "", "[^▁]"
    if not any(re.search("[^▁]▁", token) for token in inside):
        words = f"▁+{others}*|{others}+"
    elif not any(re.search("▁[^▁]", token) for token in inside):
        words = f"{others}+▁*|▁+"
    else:
        return None
    return re.compile(f"{words}|{loner}" if loner else words)


def byte_of(token: str) -> bytes | None:
    """The byte that a token <0x00> … <0xFF> stands for."""
    match = _BYTE.fullmatch(token)
    return bytes.fromhex(match[1]) if match else None


def stripping_reader(
    token_bytes: Callable[[str], bytes], content: str, most: int
) -> Callable[[str], bytes]:
    """Read tokens by `token_bytes`, leaving out up to `most` of `content` at the beginning."""
    wanted = content.encode()
    left = most

    def read(token: str) -> bytes:
        nonlocal left
        data = token_bytes(token)
        while left and data.startswith(wanted):
            data = data[len(wanted) :]
            left -= 1
        if data:
            left = 0
        return data

    return read


def first_token_reader(symbol: str, strips: bool) -> Callable[[str], bytes]:
    """Read tokens with `symbol` as a space, leaving it out of the first if it `strips`."""
    is_first = strips

    def read(token: str) -> bytes:
        nonlocal is_first
        space, is_first = "" if is_first else " ", False
        return token.replace(symbol, space).encode()

    return read


def sentencepiece_reader(
    kinds: dict[str, PieceKind],
    unknown_surface: str,
    surfaces: Mapping[str, str],
    *,
    strips: bool,
    strips_more: bool,
) -> Callable[[str], bytes]:
    """Read pieces as `SentencePieceProcessor::Decode` does.

    The pieces among `surfaces` stand for something else than they are called. With `strips`
    the space of the dummy prefix, one ▁ of the first piece, is left out; with `strips_more` also
    one of each that follows until there is text.
    """
    at_start = strips

    def read(token: str) -> bytes:
        nonlocal at_start
        kind = kinds.get(token, PieceKind.CONTROL)
        if kind == PieceKind.BYTE:
            at_start = False
            return byte_of(token) or b""
        if kind == PieceKind.CONTROL:
            return token.encode()
        if kind == PieceKind.UNKNOWN:
            at_start = False
            return unknown_surface.encode()
        if token in surfaces:
            at_start = False
            return surfaces[token].encode()
        text = token
        if at_start:
            text = text.removeprefix("▁")
            # Stripping more, a piece of nothing else leaves the beginning where it was.
            at_start = strips_more and not text
        return text.replace("▁", " ").encode()

    return read
