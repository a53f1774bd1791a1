"""Emphasis beside Chinese, Japanese and Korean text, which has no blanks between words.

CommonMark takes the asterisks in `**重要：**请` for text, because there is punctuation inside and
a letter outside. The rules here are those of "markdown-cjk-friendly": wide punctuation counts as a
letter, and beside other punctuation a wide character counts as punctuation outside.
"""

import unicodedata
from collections.abc import Callable

from markdown_it import MarkdownIt
from markdown_it.common.utils import isMdAsciiPunct, isPunctChar, isWhiteSpace
from markdown_it.rules_inline import StateInline, emphasis, strikethrough


def add_wide_emphasis(parser: MarkdownIt) -> None:
    """Change the rules for `*`, `_` and `~~` of a parser."""
    parser.inline.ruler.at("emphasis", _wide(emphasis.tokenize))
    parser.inline.ruler.at("strikethrough", _wide(strikethrough.tokenize))


def _wide(
    tokenize: Callable[[StateInline, bool], bool],
) -> Callable[[StateInline, bool], bool]:
    def rule(state: StateInline, silent: bool) -> bool:
        start, num_before = state.pos, len(state.delimiters)
        is_found = tokenize(state, silent)
        if is_found and len(state.delimiters) > num_before and state.src[start] != "_":
            before = state.src[start - 1] if start else " "
            after = state.src[state.pos] if state.pos < state.posMax else " "
            if is_wide(before) or is_wide(after):
                for delimiter in state.delimiters[num_before:]:
                    delimiter.open = _flanks(before, after)
                    delimiter.close = _flanks(after, before)
        return is_found

    return rule


def _flanks(outside: str, inside: str) -> bool:
    """Return whether a marker between two characters may begin emphasis, or end it."""
    if isWhiteSpace(ord(inside)):
        return False
    is_open = isWhiteSpace(ord(outside)) or _is_punctuation(outside) or is_wide(outside)
    return is_wide(inside) or not _is_punctuation(inside) or is_open


def _is_punctuation(character: str) -> bool:
    return isMdAsciiPunct(ord(character)) or isPunctChar(character)


def is_wide(character: str) -> bool:
    """Return whether a character is of a script with wide characters, and no emoji."""
    is_wide = unicodedata.east_asian_width(character) in ("W", "F", "H")
    return is_wide and unicodedata.category(character) != "So"
