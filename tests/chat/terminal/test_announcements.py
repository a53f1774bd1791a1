"""Titles, prompt marks and notifications: only for terminals that take them."""

import pytest

from swiftchat.chat.terminal.announcements import Announcements

TITLE = "a\x1b]0;x\a; b\nc"


def written(env: dict[str, str], *, is_on: bool = True) -> str:
    pieces: list[str] = []
    announcements = Announcements(env, pieces.append, is_on=is_on)
    announcements.show_title(TITLE)
    announcements.begin_prompt()
    announcements.begin_output()
    announcements.end_answer(9.0, TITLE)
    announcements.end_answer(11.0, TITLE)
    announcements.end_output()
    announcements.show_title(TITLE)
    announcements.close()
    return "".join(pieces)


@pytest.mark.parametrize(
    ("env", "begin"),
    [
        ({"TERM_PROGRAM": "iTerm.app"}, "\x1b]9;answered: "),
        ({"TERM": "foot"}, "\x1b]777;notify;swiftchat;answered: "),
        ({"TERM": "xterm-256color", "KITTY_WINDOW_ID": "1"}, "\x1b]9;answered: "),
    ],
)
def test_a_known_terminal_gets_all(env: dict[str, str], begin: str) -> None:
    text = written(env)
    assert text.startswith("\x1b[22;2t\x1b]2;swiftchat · ") and text.endswith("\x1b[23;2t")
    assert text.count(begin) == 1 and text.count("\x1b]2;") == 1
    assert [text.count(f"\x1b]133;{kind}\a") for kind in "ACD"] == [1, 1, 1]
    for sequence in text.split("\x1b")[1:]:  # a title cannot end one or begin another
        assert "\n" not in sequence and sequence.count("\a") <= 1
    assert "]0;" not in text


def test_others_get_the_bell_or_nothing() -> None:
    for env in ({}, {"TERM": "xterm-256color"}, {"TERM": "foot", "STY": "x"}):
        assert written(env) == "\a"
    assert written({"TERM": "foot"}, is_on=False) == ""


def test_tmux_gets_the_title_and_the_bell_whatever_terminal_it_runs_in() -> None:
    text = written({"TERM": "foot", "TMUX": "x"})
    assert text.startswith("\x1b[22;2t\x1b]2;swiftchat · ") and text.endswith("\a\x1b[23;2t")
    assert "\x1b]133" not in text and "\x1b]777" not in text
