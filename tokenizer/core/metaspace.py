"""Spaces written as ▁: splitting text into words, and decoding tokens to bytes."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from swiftchat.tokenizer.core.piece_ids import PieceKind

_BYTE = re.compile("<0x([0-9A-F]{2})>")


@dataclass(frozen=True)
class Metaspace:
    """The pre-tokenizer `Metaspace` of `tokenizers`: replace spaces by `symbol`, split before it.

    `prepend` puts `symbol` in front of text that does not begin with it: "always", "never", or
    "first" (at the beginning of the whole text).
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


def word_pattern(
    tokens: Iterable[str], *, cut_single_characters: bool = False
) -> re.Pattern[str] | None:
    """Return a pattern whose matches can be encoded one by one, or None if there is none.

    A cut between two characters that are adjacent in no token does not change the result. In most
    vocabularies ▁ occurs only at the beginning of tokens, in some only at the end. With
    `cut_single_characters` text is also cut around characters that share no token with another
    (most Chinese characters in a vocabulary of another language); this separates adjacent unknown
    characters, too.
    """
    inside = {token for token in tokens if "▁" in token}
    shared = {character for token in tokens if len(token) > 1 for character in token} - {"▁"}
    if cut_single_characters and shared:
        members = "".join(map(re.escape, sorted(shared)))
        single, others = f"[^▁{members}]", f"[{members}]"
    else:
        single, others = "", "[^▁]"
    if not any(re.search("[^▁]▁", token) for token in inside):
        words = f"▁+{others}*|{others}+"
    elif not any(re.search("▁[^▁]", token) for token in inside):
        words = f"{others}+▁*|▁+"
    else:
        return None
    return re.compile(f"{words}|{single}" if single else words)


def byte_of(token: str) -> bytes | None:
    """Return the byte of a token <0x00> … <0xFF>, None for another token."""
    match = _BYTE.fullmatch(token)
    return bytes.fromhex(match[1]) if match else None


def stripping_decoder(
    token_bytes: Callable[[str], bytes], content: str, max_count: int
) -> Callable[[str], bytes]:
    """Decode by `token_bytes`, dropping up to `max_count` leading repetitions of `content`."""
    prefix = content.encode()
    remaining = max_count

    def decode(token: str) -> bytes:
        nonlocal remaining
        data = token_bytes(token)
        while remaining and data.startswith(prefix):
            data = data[len(prefix) :]
            remaining -= 1
        if data:
            remaining = 0
        return data

    return decode


def first_token_decoder(symbol: str, strips: bool) -> Callable[[str], bytes]:
    """Decode `symbol` as a space; with `strips`, drop it from the first token."""
    is_first = strips

    def decode(token: str) -> bytes:
        nonlocal is_first
        space, is_first = "" if is_first else " ", False
        return token.replace(symbol, space).encode()

    return decode


def sentencepiece_decoder(
    kinds: dict[str, PieceKind],
    unknown_surface: str,
    surfaces: Mapping[str, str],
    *,
    strips: bool,
    strips_more: bool,
) -> Callable[[str], bytes]:
    """Decode pieces as `SentencePieceProcessor::Decode` does.

    `surfaces` maps pieces to texts that differ from their names. With `strips` one leading ▁ of
    the first piece, the dummy prefix, is dropped; with `strips_more` also one of each piece after
    it until there is text.
    """
    at_start = strips

    def decode(token: str) -> bytes:
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
            # With `strips_more`, after a piece of ▁ alone the text has not begun yet.
            at_start = strips_more and not text
        return text.replace("▁", " ").encode()

    return decode
