"""Emphasis, code, links and formulas inside a block, as styled text."""

from markdown_it.token import Token
from rich.text import Text

from swiftchat.chat.render.parse import parser
from swiftchat.chat.terminal.sanitize import sanitize

# The parser looks for the partner of every bracket, which takes time in the square of their number.
_MOST_BRACKETS = 200
_LONGEST = 8192
_STYLES = {"em": "italic", "strong": "bold", "s": "strike", "link": "underline"}
CODE_STYLE = "cyan"


def styled(content: str, marks: bool = False) -> Text:
    """The text of a paragraph, a heading or a cell; line breaks stay.

    With `marks` code keeps its backticks, for where styles cannot be seen. Links are followed by
    their addresses.
    """
    if len(content) > _LONGEST or content.count("[") > _MOST_BRACKETS:
        return Text(_clean(content))
    tokens: list[Token] = []
    parser().inline.parse(content, parser(), {}, tokens)
    text, open_styles, links = Text(), list[str](), list[tuple[str, int]]()
    for token in tokens:
        style = " ".join(open_styles)
        name = token.type.removesuffix("_open").removesuffix("_close")
        if name == "link":
            if token.nesting == 1:
                links.append((_clean(str(token.attrs["href"])), len(text)))
            else:
                _add_address(text, *links.pop())
        if name in _STYLES:
            open_styles.append(_STYLES[name]) if token.nesting == 1 else open_styles.pop()
        elif token.type == "code_inline":
            code = f"`{token.content}`" if marks else token.content
            text.append(_clean(code), f"{style} {CODE_STYLE}".strip())
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
    if address not in (label, f"mailto:{label}", f"http://{label}"):
        text.append(f" ({address})", "dim")


def _clean(content: str) -> str:
    # Entities such as &#8238; have become characters only now.
    return sanitize(content).replace("\t", " ")
