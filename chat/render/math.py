r"""Formulas in Markdown.

Text between `$…$`, `$$…$$`, `\(…\)` and `\[…\]` is not parsed as Markdown. A single dollar follows
pandoc's rule `tex_math_dollars`, so that prices are not formulas.
"""

import re

from markdown_it import MarkdownIt
from markdown_it.ruler import RuleOptionsType
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline

from swiftchat.chat.render.tex import UnknownTexError, unicode_of

_ENDS = {"$$": "$$", "\\[": "\\]", "\\(": "\\)"}
_UNFINISHED = re.compile(r"(\\[A-Za-z]*|\$)$")


def add_math(parser: MarkdownIt) -> None:
    """Add the tokens `math_block` and `math` to a parser; their content includes the delimiters."""
    may_interrupt: RuleOptionsType = {"alt": ["paragraph", "blockquote", "list"]}
    parser.block.ruler.before("fence", "math_block", _block, may_interrupt)
    parser.inline.ruler.before("escape", "math", _inline)


def _block(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Parse from `$$` or `\\[` at a line's start to its partner at a line's end or a blank line."""
    if state.is_code_block(start):
        return False
    first = _line(state, start)
    closing = _ENDS.get(first[:2])
    if closing is None or closing == "\\)":
        return False
    at = first.find(closing, 2)
    if at >= 0 and at + 2 != len(first):
        return False
    if silent:
        return True
    line = start + 1
    while at < 0 and line < end and not state.isEmpty(line):
        if state.sCount[line] < state.blkIndent:
            break
        at = 0 if _line(state, line).endswith(closing) else -1
        line += 1
    state.line = line
    token = state.push("math_block", "", 0)
    token.content = state.getLines(start, line, state.blkIndent, False)
    token.map = [start, line]
    return True


def _line(state: StateBlock, line: int) -> str:
    return state.src[state.bMarks[line] + state.tShift[line] : state.eMarks[line]].rstrip()


def _inline(state: StateInline, silent: bool) -> bool:
    text, start = state.src, state.pos
    if text[start] not in "$\\":
        return False
    opening = text[start : start + 2]
    closing = _ENDS.get(opening)
    if closing is not None:
        end = text.find(closing, start + 2)
        end = -1 if end < 0 else end + 2
    else:
        end = _end_of_dollar(text, start) if text[start] == "$" else -1
    if end < 0:
        return False
    if not silent:
        token = state.push("math", "", 0)
        token.content = text[start:end]
    state.pos = end
    return True


def _end_of_dollar(text: str, start: int) -> int:
    end = text.find("$", start + 1)
    inside = text[start + 1 : end]
    if end < 0 or not inside or inside != inside.strip() or "\n" in inside:
        return -1
    return -1 if text[end + 1 : end + 2].isdigit() else end + 1


def formula(source: str, is_growing: bool = False) -> str:
    """Return a formula with its delimiters as Unicode, or as it is if Unicode cannot say it.

    A growing formula may lack its end.
    """
    source = source.strip()
    opening = source[:2] if source[:2] in _ENDS else "$"
    inside = source.removeprefix(opening).removesuffix(_ENDS.get(opening, "$"))
    if is_growing and len(inside) + 2 * len(opening) > len(source):
        inside = _UNFINISHED.sub("", inside)
    try:
        return unicode_of(inside)
    except UnknownTexError:
        return source
