"""Grammars in GBNF, the format of llama.cpp, as Lark with the same language.

llguidance's own conversion makes terminals of rules of character classes. A terminal takes as many
characters as it can, so that what follows it may have none left. Here every terminal is one
character, and everything else is rules.
"""

import json
from typing import NoReturn

from swiftchat.errors import UsageError

_MAX_DEPTH = 100
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "[": "[", "]": "]"}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_SURROGATES = range(0xD800, 0xE000)


def gbnf_to_lark(text: str) -> str:
    """Return a grammar in Lark. Raises `UsageError` with the line of what is wrong."""
    return _Grammar(text).lark()


class _Grammar:
    """The parser of one text. `_position` is that of the next character."""

    def __init__(self, text: str) -> None:
        self._text = text.replace("\r\n", "\n").replace("\r", "\n")
        self._position = 0
        self._rules: dict[str, str] = {}
        self._numbers: dict[str, int] = {}  # names may be no names in Lark
        self._used: dict[str, int] = {}  # the places of the first uses

    def lark(self) -> str:
        self._skip(is_nested=True)
        while self._next:
            start = self._position
            name = self._name()
            self._skip(is_nested=False)
            self._expect("::=")
            self._skip(is_nested=True)
            body = self._alternatives(0)
            if self._next not in ("", "\n"):
                self._fail(f"{self._next!r} is not expected")
            if name in self._rules:
                self._fail(f"the rule {name} is there twice", start)
            self._rules[name] = body
            self._skip(is_nested=True)
        for name, position in self._used.items():
            if name not in self._rules:
                self._fail(f"there is no rule {name}", position)
        if "root" not in self._rules:
            self._fail("there is no rule root")
        lines = [f"{self._lark_name(name)}: {body}" for name, body in self._rules.items()]
        return "\n".join([f"start: {self._lark_name('root')}", *lines])

    def _lark_name(self, name: str) -> str:
        return f"rule_{self._numbers.setdefault(name, len(self._numbers))}"

    @property
    def _next(self) -> str:
        return self._text[self._position : self._position + 1]

    def _fail(self, message: str, position: int | None = None) -> NoReturn:
        at = self._position if position is None else position
        line = self._text.count("\n", 0, at) + 1
        raise UsageError(f"--grammar: line {line}: {message}", "give a grammar in Lark or GBNF")

    def _expect(self, text: str) -> None:
        if not self._text.startswith(text, self._position):
            self._fail(f"expected {text}")
        self._position += len(text)

    def _skip(self, *, is_nested: bool) -> None:
        """Skip blanks and comments, and also line ends if the place is nested."""
        while self._next and self._next in (" \t\n" if is_nested else " \t"):
            self._position += 1
        if self._next == "#":
            end = self._text.find("\n", self._position)
            self._position = len(self._text) if end < 0 else end
            self._skip(is_nested=is_nested)

    def _name(self) -> str:
        start = self._position
        while (next_ := self._next).isascii() and (next_.isalnum() or next_ in ("-", "_")):
            self._position += 1
        if self._position == start:
            self._fail("expected the name of a rule")
        return self._text[start : self._position]

    def _alternatives(self, depth: int) -> str:
        if depth > _MAX_DEPTH:
            self._fail("it is nested too deeply")
        found = [self._sequence(depth)]
        while self._next == "|":
            self._position += 1
            self._skip(is_nested=True)
            found.append(self._sequence(depth))
        return " | ".join(found)

    def _sequence(self, depth: int) -> str:
        ends = "|)" if depth else "|)\n"
        parts = []
        while (character := self._next) and character not in ends:
            item = self._item(character, depth)
            self._skip(is_nested=depth > 0)
            parts.append(self._repeated(item, depth))
        return " ".join(parts) or '""'

    def _item(self, character: str, depth: int) -> str:
        start = self._position
        match character:
            case '"':
                return self._literal()
            case "[":
                return self._class()
            case ".":
                self._position += 1
                return "/(?s:.)/"
            case "(":
                self._position += 1
                self._skip(is_nested=True)
                inner = self._alternatives(depth + 1)
                if self._next != ")":
                    self._fail("the group has no end", start)
                self._position += 1
                return f"({inner})"
        name = self._name()
        self._used.setdefault(name, start)
        return self._lark_name(name)

    def _repeated(self, item: str, depth: int) -> str:
        while self._next and self._next in "*+?{":
            if self._next == "{":
                item = f"({item}){self._counts()}"
            else:
                item = f"({item}){self._next}"
                self._position += 1
            self._skip(is_nested=depth > 0)
        return item

    def _counts(self) -> str:
        end = self._text.find("}", self._position)
        counts = self._text[self._position + 1 : end].replace(" ", "") if end >= 0 else ""
        low, comma, high = counts.partition(",")
        is_valid = low.isdecimal() and (high.isdecimal() or not high)
        if not is_valid or (high and int(high) < int(low)) or len(counts) > 12:
            self._fail("expected counts such as {2} or {1,3}")
        self._position = end + 1
        return f"{{{int(low)}{',' if comma else ''}{int(high) if high else ''}}}"

    def _literal(self) -> str:
        start, found = self._position, []
        self._position += 1
        while self._next != '"':
            if self._next in ("", "\n"):
                self._fail("the text has no end", start)
            found.append(json.dumps(self._character(), ensure_ascii=False))
        self._position += 1
        return f"({' '.join(found)})" if found else '""'

    def _class(self) -> str:
        start, ranges = self._position, ""
        self._position += 1
        sign = ""
        if self._next == "^":
            sign = "^"
            self._position += 1
        while self._next != "]":
            if self._next in ("", "\n"):
                self._fail("the class has no end", start)
            low = high = self._character()
            if self._next == "-" and self._text[self._position + 1 : self._position + 2] != "]":
                self._position += 1
                if self._next in ("", "\n"):
                    self._fail("the class has no end", start)
                high = self._character()
            if high < low:
                self._fail("the range of characters is backwards")
            ranges += rf"\u{{{ord(low):x}}}-\u{{{ord(high):x}}}"
        self._position += 1
        if not ranges and not sign:
            self._fail("the class has no characters", start)
        return f"/[{sign}{ranges}]/" if ranges else "/(?s:.)/"

    def _character(self) -> str:
        """Return the next character of a literal or a class, which may be escaped."""
        character = self._next
        self._position += 1
        if character != "\\":
            return character
        kind = self._next
        if kind in _ESCAPES and kind:
            self._position += 1
            return _ESCAPES[kind]
        num_digits = _HEX_DIGITS.get(kind, 0)
        digits = self._text[self._position + 1 : self._position + 1 + num_digits]
        try:
            code = int(digits, 16) if num_digits and len(digits) == num_digits else -1
        except ValueError:
            code = -1
        if not 0 <= code <= 0x10FFFF or code in _SURROGATES:
            self._fail(f"no character is escaped as \\{kind}{digits}")
        self._position += 1 + num_digits
        return chr(code)
