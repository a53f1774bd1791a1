"""What the program waits for is shown from the first second."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swiftchat.chat.terminal.status_line import ProgressText
from tests.support import fake_engine
from tests.support.open_terminals import chats
from tests.support.program import Program
from tests.support.terminal import Terminal

SLOW_PREFILL = {"text": "Answered.", "prefill_s": 6}
SHORT_PREFILL = {"text": "Answered.", "prefill_s": 2}


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    program = Program(fake_engine.make_folder(tmp_path / "model"))
    with chats(program, waits=False) as open_chat:
        yield open_chat


def is_at_percentage(text: str) -> bool:
    """Return whether a part of the prompt is computed, whichever a busy machine shows."""
    return re.search(r"reading \d+ tokens · [1-9]0 %", text) is not None


@pytest.mark.fault(50)
def test_loading_and_prefill_are_shown_and_erased(chat: Callable[..., Terminal]) -> None:
    terminal = chat({"load_s": 1}, SHORT_PREFILL)
    terminal.type("hello\r")
    terminal.wait_for("loading the model")
    terminal.wait_for(is_at_percentage)
    text = terminal.wait_for("Answered.")
    assert "reading" not in text and "waiting" not in text


@pytest.mark.fault(50)
def test_ctrl_c_during_prefill_and_a_busy_engine(chat: Callable[..., Terminal]) -> None:
    terminal = chat({"load_s": 0, "stats_s": 3}, SLOW_PREFILL, "Next.")
    terminal.type("hello\r")
    terminal.wait_for("reading ")
    terminal.type_now("\x03")
    terminal.wait_for(lambda text: text.count(">>> hello") == 2)
    assert "reading" not in terminal.look()
    terminal.type_now("\x15")  # Ctrl-U
    terminal.type("/stats all\r")
    terminal.wait_for("waiting for the engine")
    terminal.wait_for("free blocks")
    assert "waiting" not in terminal.look()


def test_screen_readers_get_a_line_every_few_seconds(chat: Callable[..., Terminal]) -> None:
    terminal = chat(SLOW_PREFILL, options=("--accessible",))
    terminal.type("hello\r")
    terminal.wait_for(
        lambda text: re.search(r"reading \d+ tokens · \d+ %.*, \d+ s", text) is not None
    )
    terminal.wait_for("Answered.")
    assert "reading " in terminal.look(), "lines are not erased"


def test_one_prompt_on_a_terminal(chat: Callable[..., Terminal]) -> None:
    terminal = chat(SHORT_PREFILL, options=("-p", "hello"))
    terminal.wait_for(is_at_percentage)
    text = terminal.wait_for("Answered.")
    assert "reading" not in text
    assert terminal.wait_end() == 0


def test_progress_says_how_far_and_how_long() -> None:
    now = 0.0
    text = ProgressText(lambda: now)
    assert text.of("loading PyTorch", 0, 1) == "loading PyTorch"
    assert text.of("reading 6.9k tokens", 100, 6900) == "reading 6.9k tokens · 1 %"
    now = 3.0
    assert text.of("reading 6.9k tokens", 500, 6900) == "reading 6.9k tokens · 7 % · 48 s left"
    now = 50.0
    assert text.of("reading 6.9k tokens", 6900, 6900) == "reading 6.9k tokens · 100 %"
    assert text.of("reading 10 tokens", 5, 10) == "reading 10 tokens · 50 %", "another one begins"
