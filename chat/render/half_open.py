"""Inline Markdown whose end has not arrived yet, closed as it will probably be closed.

While a paragraph grows, `**bold te` is shown as bold text and not as two asterisks that vanish
later. What may as well stay literal, as an asterisk inside a word, is left as it is.
"""

import re

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline

from swiftchat.chat.render.emphasis import is_wide

_MARKERS = {ord("*"): "*", ord("_"): "_", ord("~"): "~~"}
_RUN = re.compile(r"`+")
_ADDRESS = re.compile(r"\]\([^\s()]*$")  # of a link or an image
_AUTOLINK = re.compile(r"<(?:https?://|mailto:)[^\s<>]*$")
_BEGINNINGS = re.compile(r"(?:(?<!\\)[*_~!]+|!?\[|<(?:b|br|br ?/?)?|(?<!\\)\\|\$)$")
_COMMAND = re.compile(r"\s*\\[A-Za-z]*$")  # of TeX, which may go on
_DOLLAR = re.compile(r"\$(?=[\\A-Za-z({])")


def add_half_open(parser: MarkdownIt) -> None:
    """Let a parser record in `env["unclosed"]` what closes the open elements of a text."""
    parser.inline.ruler2.after("balance_pairs", "unclosed", _record_unclosed)


def completed(content: str, parser: MarkdownIt) -> str:
    """Return the text of a growing block with its half-open elements closed.

    Marks at its end that may begin or end an element are left out.
    """
    text, closing = _close_code(content)
    if closing:
        return text + closing + _unclosed(parser, text + closing)
    text = _BEGINNINGS.sub("", text.rstrip()).rstrip()
    if text.rfind("\\(") > text.rfind("\\)"):
        text = _COMMAND.sub("", text) + "\\)"
    elif _ADDRESS.search(text):
        text += ")"
    elif _AUTOLINK.search(text):
        text += ">"
    closing = _unclosed(parser, text)
    return (_COMMAND.sub("", text) if closing.startswith("$") else text) + closing


def last_neutral_place(content: str, parser: MarkdownIt) -> int:
    """Return a place in the second half of a long text where no element is open.

    It precedes a blank, if there are blanks. If elements are open everywhere, it is any place.
    """
    places = [_blank_before(content, len(content) * (8 - i) // 8) for i in range(4)]
    for place in places:
        text = content[:place]
        if text.rfind("[") <= text.rfind("]") and completed(text, parser) == text:
            return place
    return places[0]


def _blank_before(text: str, place: int) -> int:
    blank = re.search(r"\s\S{0,100}$", text[:place])
    return blank.start() if blank else place


def _close_code(text: str) -> tuple[str, str]:
    """Return the text without a part of a closing run, and the run that closes open code."""
    position = 0
    while run := _RUN.search(text, position):
        if run.start() and text[run.start() - 1] == "\\":
            position = run.start() + 1
            continue
        marks = run[0]
        closing = re.compile(rf"(?<!`){marks}(?!`)").search(text, run.end())
        if closing is None:
            code = text[run.end() :].rstrip("`")
            return (text[: run.end()] + code, marks) if code.strip() else (text[: run.start()], "")
        position = closing.end()
    return text, ""


def _unclosed(parser: MarkdownIt, text: str) -> str:
    env: dict[str, str] = {}
    parser.inline.parse(text, parser, env, [])
    return env["unclosed"]


def _record_unclosed(state: StateInline) -> None:
    closing = ""
    for delimiter in state.delimiters:
        is_open = delimiter.open and delimiter.end < 0
        if is_open and (not delimiter.close or is_wide(_before(state, delimiter.token))):
            closing = _MARKERS[delimiter.marker] + closing
    # An escaped dollar is a token of its own.
    literal = (t.content if t.type == "text" else t.content.replace("$", "") for t in state.tokens)
    if _DOLLAR.search("".join(literal)):
        closing = "$" + closing
    state.env["unclosed"] = closing


def _before(state: StateInline, index: int) -> str:
    """Return the character before the run of marks at a token, a blank behind a link."""
    while index and state.tokens[index - 1].content in ("*", "_", "~~"):
        index -= 1
    return (state.tokens[index - 1].content[-1:] if index else "") or " "
