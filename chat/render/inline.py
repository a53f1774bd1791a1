"""Inline Markdown (emphasis, code, links, formulas) as styled text."""

from markdown_it.token import Token
from rich.text import Text

from swiftchat.chat.render.parse import parser
from swiftchat.chat.terminal.sanitize import sanitize, sanitize_prose

# The parser takes quadratic time in the number of brackets; longer texts are not parsed.
_MAX_BRACKETS = 200
_MAX_CHARS = 8192
_STYLES = {"em": "italic", "strong": "bold", "s": "strike"}
_CODE_STYLE, _LINK_STYLE = "swiftchat.code", "swiftchat.link"  # of the theme


def styled(content: str, marks: bool = False) -> Text:
    """Return the styled text of a paragraph, heading or table cell, with its line breaks.

    With `marks` code keeps its backticks, for output without styles. Link addresses follow the
    link text in parentheses.
    """
    if len(content) > _MAX_CHARS or content.count("[") > _MAX_BRACKETS:
        return Text(_clean(content))
    tokens: list[Token] = []
    parser().inline.parse(content, parser(), {}, tokens)
    text, open_styles, links = Text(), list[str](), list[tuple[str, int]]()
    for token in tokens:
        style = " ".join(open_styles)
        name = token.type.removesuffix("_open").removesuffix("_close")
        if name == "link":
            if token.nesting == 1:
                links.append((sanitize(_clean(str(token.attrs["href"]))), len(text)))
            else:
                _add_address(text, *links.pop())
        if name in _STYLES:
            open_styles.append(_STYLES[name]) if token.nesting == 1 else open_styles.pop()
        elif token.type == "code_inline":
            code = f"`{token.content}`" if marks else token.content
            text.append(sanitize(_clean(code)), style)
            text.stylize(_CODE_STYLE, len(text) - len(code))
        elif token.type in ("softbreak", "hardbreak"):
            text.append("\n")
        elif token.type == "image":
            text.append(_clean(f"[image: {token.content}]"), style)
            text.append(_clean(f" ({token.attrs['src']})"), "dim")
        else:
            text.append(_clean(token.content), style)
    return text


def _add_address(text: Text, address: str, start: int) -> None:
    label = text.plain[start:]
    text.stylize(_LINK_STYLE, start)
    if address not in (label, f"mailto:{label}", f"http://{label}"):
        text.append(f" ({address})", "dim")


def _clean(content: str) -> str:
    # Sanitize again: the parser has replaced entities such as &#8238; by characters.
    return sanitize_prose(content).replace("\t", " ")
