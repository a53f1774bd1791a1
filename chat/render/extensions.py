"""Inline Markdown beyond CommonMark: `<br>` and footnotes."""

import re

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline

_BREAK = re.compile(r"<br ?/?>[ \n]?", re.IGNORECASE)
_FOOTNOTE = re.compile(r"\[\^([\w-]{1,30})\](:[ \t]*)?")
_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def add_extensions(parser: MarkdownIt) -> None:
    """Add the token `hardbreak` for `<br>` and `footnote` for `[^1]` to a parser.

    The content of `footnote` is the sign that is shown. It replaces the colon of a definition.
    """
    parser.inline.ruler.before("link", "break", _break)
    parser.inline.ruler.before("link", "footnote", _footnote)


def _break(state: StateInline, silent: bool) -> bool:
    found = _BREAK.match(state.src, state.pos)
    if found is None:
        return False
    if not silent:
        state.push("hardbreak", "br", 0)
    state.pos = found.end()
    return True


def _footnote(state: StateInline, silent: bool) -> bool:
    found = _FOOTNOTE.match(state.src, state.pos)
    if found is None:
        return False
    is_definition = found[2] is not None and (state.pos == 0 or state.src[state.pos - 1] == "\n")
    if not silent:
        label = found[1]
        sign = label.translate(_SUPERSCRIPTS) if label.isdecimal() else f"[{label}]"
        state.push("footnote", "", 0).content = f"{sign} " if is_definition else sign
    state.pos = found.end() if is_definition else found.end(1) + 1
    return True
