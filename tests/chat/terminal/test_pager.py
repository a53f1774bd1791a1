"""Output of slash commands that is higher than the window is shown in a pager."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.terminal import Terminal

Chat = Callable[..., Terminal]
TOP, BOTTOM = "This chat:", "/help TOPIC:"


def test_high_output_is_shown_in_less(chat: Chat) -> None:
    terminal = chat("Sent.", PAGER="less", rows=12)
    terminal.type("/help\r")
    text = terminal.wait_for(lambda text: TOP in text and text.rstrip().endswith(":"))
    assert BOTTOM not in text
    terminal.type_now("\x03")  # for less
    terminal.type_now("G")
    terminal.wait_for(BOTTOM)
    terminal.type_now("q")
    terminal.wait_for(lambda _: terminal.is_at_prompt)
    terminal.type("hello\r")  # the terminal is as before
    terminal.wait_for("Sent.")


@pytest.mark.parametrize("pager", ["", "a 'b", "/no/pager", "true"])
def test_without_a_pager_output_is_printed(chat: Chat, pager: str) -> None:
    terminal = chat("Sent.", PAGER=pager, rows=12)
    terminal.type("/help\r")
    terminal.type("hello\r")
    terminal.wait_for("Sent.")
    assert (BOTTOM.encode() in terminal.raw) == (pager != "true")


@pytest.mark.parametrize(
    ("line", "settings"),
    [
        ("/stats", {}),
        ("/help", {"rows": 100}),
        ("/help", {"options": ("--accessible",)}),
        ("/help", {"TERM": "dumb"}),
        ("hello", {}),
    ],
)
def test_other_output_is_printed(
    chat: Chat, tmp_path: Path, line: str, settings: dict[str, object]
) -> None:
    answer = "line\n\n" * 40 + "end"
    terminal = chat(answer, PAGER=f"touch {tmp_path}/paged", **{"rows": 12, **settings})
    terminal.type(f"{line}\r")
    terminal.wait_for(lambda text: line not in text.splitlines()[-1] and terminal.is_at_prompt)
    terminal.type("/bye\r")
    assert terminal.wait_end() == 0
    assert not (tmp_path / "paged").exists()


def test_order_of_output_and_notices(chat: Chat) -> None:
    """A hint of an error comes behind what was printed, and the streams are as before."""
    terminal = chat("Sent.", PAGER="cat", rows=60)
    terminal.type("/set nonsense\r")
    text = terminal.wait_for("/set lists the parameters")
    assert text.index("error:") < text.index("hint: /set")
    terminal.type("hello\r")
    terminal.wait_for("Sent.")
