"""Output style of answers, chosen once from options, environment and stdout."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from swiftchat.chat.terminal.streams import theme_stderr
from swiftchat.chat.terminal.theme import Theme, choose_theme, parse_colors

if TYPE_CHECKING:
    from swiftchat.chat.options.table import Options

# Environment variables set by terminals that rewrap lines when their width changes.
_REWRAPPING = (
    "TMUX",
    "VTE_VERSION",
    "KONSOLE_VERSION",
    "KITTY_WINDOW_ID",
    "WT_SESSION",
    "TERM_PROGRAM",
    "ALACRITTY_WINDOW_ID",
    "WEZTERM_PANE",
)

# Environment variables and values of TERM_PROGRAM of terminals that take links (OSC 8).
_LINKING = (
    "KONSOLE_VERSION",
    "KITTY_WINDOW_ID",
    "WT_SESSION",
    "ALACRITTY_WINDOW_ID",
    "WEZTERM_PANE",
)
_LINKING_PROGRAMS = ("iTerm.app", "WezTerm", "vscode", "ghostty", "Hyper", "Tabby", "rio")
_FIRST_LINKING_VTE = 5000  # version 0.50

_ANY_BACKGROUND = Theme()

Rows = list[tuple[str, str]]  # each a part of the theme, and a text


@dataclass(frozen=True)
class Style:
    """Output style of answers.

    - `exact`: the model's text unchanged, for pipes.
    - `raw`: the model's text, sanitized.
    - `markdown`: rendered Markdown; with `is_live` the unfinished tail is redrawn.
    - `accessible`: rendered for screen readers; nothing is redrawn.

    `rewraps`: the terminal rewraps lines when it becomes narrower. `has_links`: it takes links
    whose address is not part of the text. `theme` has the colors.
    """

    mode: Literal["exact", "raw", "markdown", "accessible"]
    is_colored: bool = False
    is_live: bool = False
    rewraps: bool = False
    has_links: bool = False
    theme: Theme = _ANY_BACKGROUND

    @property
    def is_rendered(self) -> bool:
        return self.mode in ("markdown", "accessible")

    def paint(self, part: str, text: str) -> str:
        """Return a text in the theme's style of a part."""
        return self.theme.paint(part, text) if self.is_colored else text


def choose_style(config: "Options", env: Mapping[str, str], at_terminal: bool) -> Style:
    """Choose the style from `--raw`, `--accessible`, `--color`, `--theme` and their variables.

    Flags override NO_COLOR, which overrides FORCE_COLOR. FORCE_COLOR does not affect pipes.
    """
    if config.raw or config.no_template or not (at_terminal or config.color == "always"):
        return Style("raw" if at_terminal else "exact")
    colored, theme = is_colored(config, env), theme_of(config, env)
    if is_accessible(config, env):
        return Style("accessible", colored, theme=theme)
    rewraps = any(env.get(name) for name in _REWRAPPING)
    has_links = at_terminal and colored and takes_links(env)
    return Style("markdown", colored, at_terminal, rewraps, has_links, theme)


def theme_of(config: "Options", env: Mapping[str, str], background: bytes | None = None) -> Theme:
    """Return the theme of `--theme` and `--colors`; `background` is what the terminal has told."""
    return choose_theme(config.theme, parse_colors(config.colors or ""), env, background)


def color_notices(config: "Options", env: Mapping[str, str]) -> None:
    """Color notices and errors on stderr as the options and the variables say."""
    theme_stderr(theme_of(config, env) if is_colored(config, env) else None)


def is_colored(config: "Options", env: Mapping[str, str]) -> bool:
    """Return whether a terminal gets colors, in answers and around the input line."""
    if config.theme == "none" or config.color == "never":
        return False
    forced = env.get("FORCE_COLOR", "") not in ("", "0")
    auto_colored = not env.get("NO_COLOR") and (forced or not is_accessible(config, env))
    return config.color == "always" or auto_colored


def takes_links(env: Mapping[str, str]) -> bool:
    """Return whether the terminal is known to take links, or FORCE_HYPERLINK says so.

    Multiplexers may drop the address, so they count as terminals that do not.
    """
    if forced := env.get("FORCE_HYPERLINK", ""):
        return forced != "0"
    if env.get("TMUX") or env.get("STY"):
        return False
    vte = env.get("VTE_VERSION", "")
    if vte.isascii() and vte.isdecimal() and int(vte[:9]) >= _FIRST_LINKING_VTE:
        return True
    return env.get("TERM_PROGRAM") in _LINKING_PROGRAMS or any(map(env.get, _LINKING))


def can_ask_background(config: "Options", style: Style, env: Mapping[str, str]) -> bool:
    """Return whether the theme depends on the background, and the terminal can tell its color."""
    # The Linux console has no such question and may print it.
    return config.theme == "auto" and style.is_colored and env.get("TERM") != "linux"


def is_accessible(config: "Options", env: Mapping[str, str]) -> bool:
    """Return whether rows must not be redrawn, by request or because the terminal is dumb."""
    return config.accessible or is_dumb(env) or env.get("ACCESSIBLE", "") not in ("", "0")


def is_dumb(env: Mapping[str, str]) -> bool:
    """Return whether the terminal cannot move its cursor."""
    return env.get("TERM", "") in ("dumb", "unknown")
