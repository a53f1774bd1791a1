"""Colors for code that comes line by line."""

from bisect import bisect_left
from functools import cache

from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Generic, Keyword, Name, Number, Operator, String, _TokenType
from pygments.util import ClassNotFound
from rich.text import Text

# A lexer reads from here on for every line, so it must not be far.
_WINDOW_CHARS = 2000
_LONGEST_LINE = 500  # expressions of lexers may take very long over one

# The terminal's own colors without the bright ones, yellow, black and white: whatever the
# background is, its theme keeps these readable.
_STYLES: dict[_TokenType, str] = {
    Comment: "dim italic",
    Comment.Preproc: "magenta",
    Keyword: "magenta",
    Keyword.Constant: "blue",
    Keyword.Type: "blue",
    Operator.Word: "magenta",
    String: "green",
    Number: "blue",
    Name.Function: "bold",
    Name.Class: "bold",
    Name.Decorator: "magenta",
    Name.Tag: "magenta",
    Name.Attribute: "blue",
    Name.Builtin: "cyan",
    Name.Exception: "red",
    Generic.Deleted: "red",
    Generic.Inserted: "green",
    Generic.Heading: "bold",
    Generic.Subheading: "bold",
    Generic.Emph: "italic",
    Generic.Strong: "bold",
}


class Highlighter:
    """Styles each line by what came before it, which is never styled anew."""

    def __init__(self, language: str) -> None:
        self._lexer = _lexer(language)
        self._before = ""  # what the lexer reads first
        self._safe = [0]  # places in it where a line begins outside strings and comments

    def styled(self, code: str) -> Text:
        """The next line or lines of the code."""
        if self._lexer is None or max(map(len, code.split("\n"))) > _LONGEST_LINE:
            self._before, self._safe = "", [0]
            return Text(code)
        start, text = len(self._before), Text()
        self._before += code + "\n"
        last: _TokenType = Name
        for place, kind, value in self._lexer.get_tokens_unprocessed(self._before):
            last = kind
            if place + len(value) > start:
                text.append(value[max(0, start - place) :], _style(kind))
        text.rstrip_end(len(code))
        if last not in String and last not in Comment:
            self._safe.append(len(self._before))
        self._shorten()
        return text[: len(code)]

    def _shorten(self) -> None:
        if len(self._before) > _WINDOW_CHARS:
            at = self._safe[-1] or self._before.index("\n", _WINDOW_CHARS // 2) + 1
            self._before = self._before[at:]
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
