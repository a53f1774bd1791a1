"""Colors of what a chat shows, for dark, light and unknown backgrounds."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace

_COLOR = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"]
_WORDS = {
    *_COLOR,
    *(f"bright_{color}" for color in _COLOR),
    *("bold", "dim", "italic", "underline", "reverse", "none"),
}
# The answer of a terminal: 1 to 4 hexadecimal digits for each of red, green and blue.
_RGB = re.compile(rb"rgba?:([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})")
_LIGHT_ANSI = (7, *range(9, 16))
_ATTRIBUTES = {"bold": 1, "dim": 2, "italic": 3, "underline": 4, "reverse": 7}


@dataclass(frozen=True)
class Theme:
    """A style for each part, in words of rich: ANSI colors, `#rrggbb`, `bold`, `dim`, ….

    The default is readable on any background: no bright colors, yellow, black and white.
    """

    question: str = "bold cyan"
    notice: str = "dim"
    hint: str = "dim"
    tool: str = "dim"
    reasoning: str = "dim"
    heading: str = "magenta"
    link: str = "underline"
    code: str = "cyan"
    keyword: str = "magenta"
    type: str = "blue"
    string: str = "green"
    number: str = "blue"
    function: str = "bold"
    builtin: str = "cyan"
    comment: str = "dim italic"
    error: str = "red"
    added: str = "green"  # lines of a diff
    removed: str = "red"
    probable: str = "green"  # tokens of /show alternatives, by probability
    likely: str = "cyan"
    unlikely: str = "yellow"
    improbable: str = "red"

    def styles(self) -> dict[str, str]:
        """Return the styles by the names that rendered rows use, as `swiftchat.code`."""
        return {f"swiftchat.{name}": style for name, style in asdict(self).items()}

    def sequence(self, part: str) -> str:
        """Return the escape sequence that begins a part, empty for the style `none`."""
        codes = ";".join(filter(None, map(_code, getattr(self, part).split())))
        return f"\x1b[{codes}m" if codes else ""

    def paint(self, part: str, text: str) -> str:
        """Return each line of a text in the style of a part."""
        begin = self.sequence(part)
        lines = text.split("\n")
        return "\n".join(f"{begin}{line}\x1b[0m" if begin and line else line for line in lines)


def _code(word: str) -> str:
    """Return the parameter of a word of a style in an escape sequence."""
    if word.startswith("#"):
        return "38;2;" + ";".join(str(int(word[i : i + 2], 16)) for i in (1, 3, 5))
    if word in _ATTRIBUTES:
        return str(_ATTRIBUTES[word])
    color = word.removeprefix("bright_")
    return str((30 if color == word else 90) + _COLOR.index(color)) if color in _COLOR else ""


_DARK = Theme(
    question="bold bright_cyan",
    heading="bright_magenta",
    code="bright_cyan",
    keyword="bright_magenta",
    type="bright_blue",
    string="bright_green",
    number="bright_blue",
    builtin="bright_cyan",
    error="bright_red",
    added="bright_green",
    removed="bright_red",
    probable="bright_green",
    likely="bright_cyan",
    unlikely="bright_yellow",
    improbable="bright_red",
)
_LIGHT = Theme(question="bold blue", code="blue", builtin="blue", likely="blue", unlikely="magenta")

# In 24 bit: name → (whether the background is light, the theme). Every color has a contrast of 4.5
# or more, on black and #282c34 or on white and #fdf6e3.
_NAMED = {
    "harbor": (
        False,
        Theme(
            question="bold #7fc8ff",
            notice="#9aa7b5",
            hint="#9aa7b5",
            tool="#8fb3a6",
            reasoning="italic #9aa7b5",
            heading="#ffd08a",
            link="underline #7fc8ff",
            code="#8fe0c6",
            keyword="#c9a6ff",
            type="#7fc8ff",
            string="#b5e08a",
            number="#ffb38a",
            function="#ffd08a",
            builtin="#8fe0c6",
            comment="italic #9aa7b5",
            error="#ff8f8f",
            added="#b5e08a",
            removed="#ff8f8f",
            probable="#b5e08a",
            likely="#7fc8ff",
            unlikely="#ffd08a",
            improbable="#ff8f8f",
        ),
    ),
    "ember": (
        False,
        Theme(
            question="bold #ffb454",
            notice="#b3a79a",
            hint="#b3a79a",
            tool="#c2b280",
            reasoning="italic #b3a79a",
            heading="#ff9a76",
            link="underline #8ec9b0",
            code="#e6c384",
            keyword="#ff9a76",
            type="#8ec9b0",
            string="#b8cc7a",
            number="#d9a6d0",
            function="#ffb454",
            builtin="#e6c384",
            comment="italic #b3a79a",
            error="#ff8080",
            added="#b8cc7a",
            removed="#ff8080",
            probable="#b8cc7a",
            likely="#8ec9b0",
            unlikely="#ffb454",
            improbable="#ff8080",
        ),
    ),
    "paper": (
        True,
        Theme(
            question="bold #0b4f8a",
            notice="#5f6672",
            hint="#5f6672",
            tool="#4d6a5f",
            reasoning="italic #5f6672",
            heading="#8a3b00",
            link="underline #0b4f8a",
            code="#0b625c",
            keyword="#7a2c8f",
            type="#0b4f8a",
            string="#3f6212",
            number="#9a3412",
            function="#8a3b00",
            builtin="#0b625c",
            comment="italic #5f6672",
            error="#b42318",
            added="#3f6212",
            removed="#b42318",
            probable="#3f6212",
            likely="#0b4f8a",
            unlikely="#8a3b00",
            improbable="#b42318",
        ),
    ),
}
THEMES = ("auto", "dark", "light", *_NAMED, "none")


def has_truecolor(env: Mapping[str, str]) -> bool:
    """Return whether the terminal has said that it knows colors of 24 bit."""
    return env.get("COLORTERM", "") in ("truecolor", "24bit")


def choose_theme(
    name: str, colors: Mapping[str, str], env: Mapping[str, str], answer: bytes | None = None
) -> Theme:
    """Return a named theme, or that of the background, with changed `colors`.

    Where the terminal has no colors of 24 bit, a theme that needs them is `dark` or `light`.
    `answer` is the background color that the terminal has told, else COLORFGBG in `env` counts.
    """
    is_light: bool | None
    if name in _NAMED:
        is_light, named = _NAMED[name]
        if has_truecolor(env):
            return replace(named, **colors)
    elif name in ("dark", "light"):
        is_light = name == "light"
    else:
        is_light = _is_light(answer) if answer is not None else None
        is_light = _is_light_in(env.get("COLORFGBG", "")) if is_light is None else is_light
    theme = Theme() if is_light is None else _LIGHT if is_light else _DARK
    return replace(theme, **colors)


def _is_light(answer: bytes) -> bool | None:
    found = _RGB.search(answer)
    if found is None:
        return None
    red, green, blue = (int(digits, 16) / ((1 << 4 * len(digits)) - 1) for digits in found.groups())
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.5


def _is_light_in(colors: str) -> bool | None:
    """Return whether COLORFGBG, as `15;0`, names a light background."""
    background = colors.rpartition(";")[2]
    if not (background.isascii() and background.isdecimal() and int(background) < 16):
        return None
    return int(background) in _LIGHT_ANSI


def parse_colors(text: str) -> dict[str, str]:
    """Return the styles in `NAME=STYLE,…`, by name. Raises `ValueError` with the reason."""
    names = [field.name for field in fields(Theme)]
    colors = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, style = (word.strip() for word in part.partition("="))
        if name not in names:
            raise ValueError(f"no color is named {name!r}: {', '.join(names)}")
        if unknown := [word for word in style.split() or [""] if word not in _WORDS]:
            raise ValueError(f"{unknown[0]!r} is not a color: {', '.join(sorted(_WORDS))}")
        colors[name] = " ".join(style.split())
    return colors
