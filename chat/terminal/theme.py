"""Colors of rendered answers, for dark, light and unknown backgrounds."""

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


@dataclass(frozen=True)
class Theme:
    """A style for each part of a text, in words of rich: ANSI colors, `bold`, `dim`, ….

    The default is readable on any background: no bright colors, yellow, black and white.
    """

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
    probable: str = "green"  # tokens of /show alternatives, by probability
    likely: str = "cyan"
    unlikely: str = "yellow"
    improbable: str = "red"

    def styles(self) -> dict[str, str]:
        """Return the styles by the names that rendered rows use, as `swiftchat.code`."""
        return {f"swiftchat.{name}": style for name, style in asdict(self).items()}


_DARK = Theme(
    heading="bright_magenta",
    code="bright_cyan",
    keyword="bright_magenta",
    type="bright_blue",
    string="bright_green",
    number="bright_blue",
    builtin="bright_cyan",
    error="bright_red",
    probable="bright_green",
    likely="bright_cyan",
    unlikely="bright_yellow",
    improbable="bright_red",
)
_LIGHT = Theme(code="blue", builtin="blue", likely="blue", unlikely="magenta")


def choose_theme(
    name: str, colors: Mapping[str, str], env: Mapping[str, str], answer: bytes | None = None
) -> Theme:
    """Return the theme `dark` or `light`, or that of the background, with changed `colors`.

    `answer` is the background color that the terminal has told, else COLORFGBG in `env` counts.
    """
    if name in ("dark", "light"):
        is_light: bool | None = name == "light"
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
