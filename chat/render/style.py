"""How answers look: decided once, from the options, the environment and what stdout is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from swiftchat.chat.options.config import ChatConfig

# Terminals that break lines anew when their width changes, by a variable that they set.
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


@dataclass(frozen=True)
class Style:
    """`exact` is the model's bytes, for pipes; `raw` those with control characters made visible;
    `markdown` is rendered; `accessible` is rendered for screen readers: nothing is drawn over.

    `rewraps`: the terminal breaks lines anew when it becomes narrower.
    """

    mode: Literal["exact", "raw", "markdown", "accessible"]
    is_colored: bool = False
    is_live: bool = False
    rewraps: bool = False

    @property
    def is_rendered(self) -> bool:
        return self.mode in ("markdown", "accessible")


def choose_style(config: "ChatConfig", env: Mapping[str, str], at_terminal: bool) -> Style:
    """What `--raw`, `--accessible`, `--color` and their variables ask for.

    Flags go before NO_COLOR, that before FORCE_COLOR, which never colors what goes into a pipe.
    """
    accessible = is_accessible(config, env)
    if config.raw or config.no_template or not (at_terminal or config.color == "always"):
        return Style("raw" if at_terminal else "exact")
    forced = env.get("FORCE_COLOR", "") not in ("", "0")
    by_itself = not env.get("NO_COLOR") and (forced or not accessible)
    colored = config.color == "always" or (config.color == "auto" and by_itself)
    if accessible:
        return Style("accessible", colored)
    return Style("markdown", colored, at_terminal, any(env.get(name) for name in _REWRAPPING))


def is_accessible(config: "ChatConfig", env: Mapping[str, str]) -> bool:
    """Whether nothing may be drawn over: asked for, or the terminal cannot."""
    return config.accessible or is_dumb(env) or env.get("ACCESSIBLE", "") not in ("", "0")


def is_dumb(env: Mapping[str, str]) -> bool:
    """Whether the terminal cannot move its cursor."""
    return env.get("TERM", "") in ("dumb", "unknown")
