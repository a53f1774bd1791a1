"""Inline Markdown (emphasis, code, links, formulas) as styled text."""

import re
from dataclasses import dataclass

from markdown_it.token import Token
from rich.style import Style as RichStyle
from rich.text import Text

from swiftchat.chat.render.half_open import completed
from swiftchat.chat.render.math import formula
from swiftchat.chat.render.parse import parser
from swiftchat.chat.terminal.sanitize import sanitize, sanitize_prose

# The parser takes quadratic time in the number of brackets; such texts are not parsed.
_MAX_BRACKETS = 100
_STYLES = {"em": "italic", "strong": "bold", "s": "strike"}
_CODE_STYLE, _LINK_STYLE = "swiftchat.code", "swiftchat.link"  # of the theme
_LIKE_ADDRESS = re.compile(r"://|\w\.\w{2}")
_LINKED = re.compile(r"(?:https?://|mailto:)[!-~]+")  # without blanks and controls


@dataclass(frozen=True)
class Inline:
    """Styles the text of paragraphs, headings and table cells.

    `marks`: code keeps its backticks and formulas are TeX, for output without styles. `links`: the
    terminal takes links, so that their addresses are not written out.
    """

    marks: bool = False
    links: bool = False

    def styled(self, content: str, is_growing: bool = False) -> Text:
        """Return the styled text with its line breaks.

        The address of a link follows its text in parentheses, unless the terminal takes links.
        A text that `is_growing` may end within an element.
        """
        if content.count("[") > _MAX_BRACKETS:
            return Text(_clean(content))
        if is_growing:
            content = completed(content, parser())
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
                    self._add_link(text, *links.pop())
            elif name in _STYLES:
                open_styles.append(_STYLES[name]) if token.nesting == 1 else open_styles.pop()
            elif token.type == "code_inline":
                code = sanitize(_clean(f"`{token.content}`" if self.marks else token.content))
                text.append(code, style)
                text.stylize(_CODE_STYLE, len(text) - len(code))
            elif token.type in ("softbreak", "hardbreak"):
                text.append("\n")
            elif token.type == "image":
                text.append(_clean(f"[image: {token.content}]"), style)
                text.append(_clean(f" ({token.attrs['src']})"), "dim")
            elif token.type == "math":
                text.append(_clean(token.content if self.marks else formula(token.content)), style)
            else:
                text.append(_clean(token.content), style)
        return text

    def _add_link(self, text: Text, address: str, start: int) -> None:
        label = text.plain[start:]
        text.stylize(_LINK_STYLE, start)
        says_address = address in (label, f"mailto:{label}", f"http://{label}")
        is_linked = self.links and _LINKED.fullmatch(address) is not None
        if is_linked:
            text.stylize(RichStyle(link=address), start)
        # A label that looks like another address may not hide where the link leads.
        if not says_address and (not is_linked or _LIKE_ADDRESS.search(label)):
            text.append(f" ({address})", "dim")


def _clean(content: str) -> str:
    # Sanitize again: the parser has replaced entities such as &#8238; by characters.
    return sanitize_prose(content).replace("\t", " ")
