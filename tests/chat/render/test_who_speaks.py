"""Question, answer, notice, error and call are told apart, live and when they are reprinted."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swiftchat.chat.terminal.theme import THEMES, Theme, choose_theme
from tests.support import fake_engine
from tests.support.open_terminals import chats
from tests.support.program import Program
from tests.support.terminal import Terminal

Chat = Callable[..., Terminal]
Cell = tuple[str, str, bool]
NO_THEME = {"NO_COLOR": "", "COLORFGBG": "", "COLORTERM": ""}


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Chat]:
    program = Program(fake_engine.make_folder(tmp_path / "model"))
    with chats(program) as open_chat:
        yield open_chat


def rows_from(terminal: Terminal, text: str, which: int = 0) -> list[list[Cell]]:
    """Return the cells (character, color, whether bold) of rows from the one with a text on."""
    screen = terminal.screen
    starts = [i for i, line in enumerate(screen.display) if line.startswith(text)]
    cells = [[screen.buffer[y][x] for x in range(screen.columns)] for y in range(screen.lines)]
    return [
        [(cell.data, cell.fg, cell.bold) for cell in row if cell.data.strip()]
        for row in cells[starts[which] :]
    ]


def looks(row: list[Cell]) -> set[tuple[str, bool]]:
    return {(color, is_bold) for _, color, is_bold in row}


@pytest.mark.parametrize(
    ("options", "env", "color"),
    [
        (("--theme", "dark"), {}, "brightcyan"),
        (("--theme", "light"), {}, "blue"),
        (("--theme", "paper"), {"COLORTERM": "truecolor"}, "0b4f8a"),
        (("--theme", "paper"), {}, "blue"),
        (("--colors", "question=magenta bold"), {}, "magenta"),
    ],
)
def test_the_question_keeps_its_color(
    chat: Chat, options: tuple[str, ...], env: dict[str, str], color: str
) -> None:
    terminal = chat("The answer.", options=options, **{**NO_THEME, **env})
    terminal.type_now("first row\x1b\rsecond row")
    terminal.wait_for("... second row")
    assert looks(rows_from(terminal, ">>> first")[0]) == {(color, True)}
    terminal.type_now("\r")
    terminal.wait_for("The answer.")
    live = rows_from(terminal, ">>> first")[:4]
    assert [looks(row) for row in live] == [
        {(color, True)},
        {(color, True)},
        set(),
        {("default", False)},
    ]
    terminal.type("/show\r")
    terminal.wait_for(lambda text: text.count("The answer.") == 2)
    assert rows_from(terminal, ">>> first", which=1)[:4] == live
    assert not any(is_bold for _, _, is_bold in rows_from(terminal, ">>> /show")[0][3:])


def test_errors_and_hints(chat: Chat) -> None:
    terminal = chat(options=("--theme", "dark"), **NO_THEME)
    terminal.type("/nosuch\r")
    terminal.wait_for("hint: did you")
    assert b"\x1b[91merror: \x1b[0munknown command" in terminal.raw
    assert b"\x1b[2mhint: " in terminal.raw and b"\x1b[2mswiftchat \xc2\xb7 " in terminal.raw


@pytest.mark.parametrize(
    ("options", "env"),
    [
        ((), {"NO_COLOR": "1"}),
        (("--accessible",), {}),
        ((), {"TERM": "dumb"}),
        (("--theme", "none"), {}),
        (("--color", "never"), {}),
    ],
)
def test_no_colors_where_they_are_not_wanted(
    chat: Chat, options: tuple[str, ...], env: dict[str, str]
) -> None:
    terminal = chat("The answer.", options=options, **{**NO_THEME, **env})
    terminal.type("hello\r")
    terminal.wait_for("The answer.")
    terminal.type("/nosuch\r")
    terminal.wait_for("hint: did you")
    assert b"error: unknown" in terminal.raw
    for sequence in (b"\x1b[2m", b"\x1b[31m", b"\x1b[91m", b"\x1b[36m", b"\x1b[1;", b"38;"):
        assert sequence not in terminal.raw


def test_the_status_below_an_answer_is_gone_at_its_end(chat: Chat) -> None:
    terminal = chat({"text": "word " * 40, "delay_s": 0.05})
    terminal.type("hello\r")
    terminal.wait_for("tok/s · Ctrl-C stops")
    text = terminal.wait_for(lambda text: "Send a message" in text.partition("word")[2])
    assert "Ctrl-C stops" not in text


def brightness(color: str) -> float:
    """Return the relative luminance of `#rrggbb` as WCAG 2 defines it."""
    values = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    dark, light = sorted((brightness(first), brightness(second)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("name", ["harbor", "ember", "paper"])
def test_colors_of_24_bit_can_be_read(name: str) -> None:
    assert name in THEMES
    theme = choose_theme(name, {}, {"COLORTERM": "24bit"})
    backgrounds = ("#ffffff", "#fdf6e3") if name == "paper" else ("#000000", "#282c34")
    for style in theme.styles().values():
        color = style.split()[-1]
        assert min(contrast(color, background) for background in backgrounds) >= 4.5, style


def test_each_line_is_painted() -> None:
    theme = Theme(notice="bold bright_red", hint="none", tool="italic #0a10ff")
    assert theme.paint("notice", "a\n\nb") == "\x1b[1;91ma\x1b[0m\n\n\x1b[1;91mb\x1b[0m"
    assert theme.paint("hint", "a") == "a"
    assert theme.paint("tool", "a") == "\x1b[3;38;2;10;16;255ma\x1b[0m"
