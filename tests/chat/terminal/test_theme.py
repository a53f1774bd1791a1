"""Themes: the background, colors in the configuration, the styles of rendered rows."""

import pytest

from swiftchat.chat.history.conversation import Message
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.render.reprint import conversation_rows
from swiftchat.chat.render.style import choose_style
from swiftchat.chat.terminal.theme import Theme, choose_theme, parse_colors

DARK, LIGHT = choose_theme("dark", {}, {}), choose_theme("light", {}, {})
ANY = Theme()


@pytest.mark.parametrize(
    ("answer", "theme"),
    [
        (b"rgb:0000/0000/0000\x1b\\", DARK),
        (b"rgb:1e1e/1e1e/2e2e\x07", DARK),
        (b"rgb:ffff/ffff/ffff\x07", LIGHT),
        (b"rgb:fd/f6/e3\x07", LIGHT),
        (b"rgba:f/f/f/f", LIGHT),
        (b"rgb:0000/ffff/0000", LIGHT),
        (b"rgb:0000/0000/ffff", DARK),
        (b"rgb:zz", ANY),
        (b"", ANY),
        (None, ANY),
    ],
)
def test_the_answer_of_the_terminal(answer: bytes | None, theme: Theme) -> None:
    assert choose_theme("auto", {}, {}, answer) == theme


@pytest.mark.parametrize(
    ("value", "theme"),
    [
        ("15;0", DARK),
        ("0;15", LIGHT),
        ("0;default;7", LIGHT),
        ("7;8", DARK),
        ("15;default", ANY),
        ("0;16", ANY),
        ("٣;٣", ANY),
        ("", ANY),
    ],
)
def test_colorfgbg_counts_without_an_answer(value: str, theme: Theme) -> None:
    env = {"COLORFGBG": value}
    assert choose_theme("auto", {}, env) == theme
    assert choose_theme("auto", {}, env, b"rgb:0/0/0") == DARK
    assert choose_theme("light", {}, env, b"rgb:0/0/0") == LIGHT


def test_colors_change_the_theme() -> None:
    colors = parse_colors(" code = bold bright_red , keyword=none,")
    assert colors == {"code": "bold bright_red", "keyword": "none"}
    theme = choose_theme("dark", colors, {})
    assert (theme.code, theme.keyword, theme.string) == ("bold bright_red", "none", DARK.string)


@pytest.mark.parametrize(
    "text", ["red", "x=red", "code=", "code=#ff0000", "code=on red", "code=a=b"]
)
def test_invalid_colors(text: str) -> None:
    with pytest.raises(ValueError, match="color"):
        parse_colors(text)


def rows(config: ChatConfig, **env: str) -> str:
    style = choose_style(config, env, at_terminal=True)
    text = "# H\n\n`code` **`strong`** [label](http://x)\n\n```python\nreturn 'x'\n```"
    return "\n".join(conversation_rows(style, [Message("assistant", text)], 80))


def test_rendered_rows_have_the_colors_of_the_theme() -> None:
    assert "\x1b[36mcode\x1b[0m" in rows(ChatConfig())
    assert "\x1b[96mcode\x1b[0m" in rows(ChatConfig(theme="dark"))
    assert "\x1b[34mcode\x1b[0m" in rows(ChatConfig(), COLORFGBG="0;15")
    assert "\x1b[1;34mstrong\x1b[0m" in rows(ChatConfig(theme="light"))
    assert "\x1b[95mreturn\x1b[0m" in rows(ChatConfig(theme="dark"))
    assert "\x1b[4mlabel\x1b[0m (http" in rows(ChatConfig()).replace("\x1b[2m", "")
    shown = rows(ChatConfig(colors="heading=green,link=none,code=red"))
    assert "\x1b[1;4;32mH\x1b[0m" in shown and "\x1b[31mcode" in shown and "4mlabel" not in shown
    for config in (ChatConfig(theme="none"), ChatConfig(theme="none", color="always")):
        assert "\x1b[3" not in rows(config) and "\x1b[1mstrong\x1b[0m" in rows(config)
