"""Syntax highlighting of code that arrives line by line."""

from bisect import bisect_left
from functools import cache

from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Generic, Keyword, Name, Number, Operator, String, _TokenType
from pygments.util import ClassNotFound
from rich.text import Text

_WINDOW_CHARS = 2000  # code that the lexer reads again for every line
_MAX_LINE_CHARS = 500  # the regular expressions of lexers can take very long on longer lines

# Names with a dot are styles of the theme.
_STYLES: dict[_TokenType, str] = {
    Comment: "swiftchat.comment",
    Comment.Preproc: "swiftchat.keyword",
    Keyword: "swiftchat.keyword",
    Keyword.Constant: "swiftchat.type",
    Keyword.Type: "swiftchat.type",
    Operator.Word: "swiftchat.keyword",
    String: "swiftchat.string",
    Number: "swiftchat.number",
    Name.Function: "swiftchat.function",
    Name.Class: "swiftchat.function",
    Name.Decorator: "swiftchat.keyword",
    Name.Tag: "swiftchat.keyword",
    Name.Attribute: "swiftchat.type",
    Name.Builtin: "swiftchat.builtin",
    Name.Exception: "swiftchat.error",
    Generic.Deleted: "swiftchat.error",
    Generic.Inserted: "swiftchat.string",
    Generic.Heading: "bold",
    Generic.Subheading: "bold",
    Generic.Emph: "italic",
    Generic.Strong: "bold",
}


class Highlighter:
    """Styles each line of code in the context of the lines before it.

    A shallow copy goes on from the same place.
    """

    def __init__(self, language: str) -> None:
        self._lexer = _lexer(language)
        self._context = ""  # recent code that the lexer reads before the new line
        self._safe = [0]  # offsets of lines in it that begin outside strings and comments

    def styled(self, code: str) -> Text:
        """Return the next line or lines of the code with styles."""
        if self._lexer is None or max(map(len, code.split("\n"))) > _MAX_LINE_CHARS:
            self._context, self._safe = "", [0]
            return Text(code)
        start, text = len(self._context), Text()
        self._context += code + "\n"
        last: _TokenType = Name
        for offset, kind, value in self._lexer.get_tokens_unprocessed(self._context):
            last = kind
            if offset + len(value) > start:
                text.append(value[max(0, start - offset) :], _style(kind))
        text.rstrip_end(len(code))
        if last not in String and last not in Comment:
            self._safe = [*self._safe, len(self._context)]
        self._trim_context()
        return text[: len(code)]

    def _trim_context(self) -> None:
        if len(self._context) > _WINDOW_CHARS:
            at = self._safe[-1] or self._context.index("\n", _WINDOW_CHARS // 2) + 1
            self._context = self._context[at:]
            self._safe = [0, *(s - at for s in self._safe[bisect_left(self._safe, at + 1) :])]


@cache
def _lexer(language: str) -> Lexer | None:
    try:
        lexer: Lexer = get_lexer_by_name(language)
    except ClassNotFound:
        return None
    return lexer


@cache
def _style(kind: _TokenType) -> str:
    while kind not in _STYLES and kind.parent is not None:
        kind = kind.parent
    return _STYLES.get(kind, "")
