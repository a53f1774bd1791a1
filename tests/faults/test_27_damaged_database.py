"""Fault 27: the database of conversations is damaged.

Required: the file is kept under another name, one warning has that name, and the chat works and is
saved in a new file.

Provoked by: a file with other content, random bytes behind the first page, and a file cut in the
middle, before a chat in a terminal or a one-shot starts.
"""

import os
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from swiftchat.chat.history.store import SessionStore, sessions_path
from tests.support.program import Program
from tests.support.terminal import Terminal

LARGE = {"load_s": 0, "ctx_size_tokens": 1 << 20}
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "other content": lambda data: b"no database" * 1000,
    "random pages": lambda data: data[:4096] + random.Random(27).randbytes(len(data) - 4096),
    "cut": lambda data: data[: len(data) // 2],
}


def damage(program: Program, name: str) -> bytes:
    """Save a long conversation, damage the file and return its bytes."""
    saved = program.run("-p", "before " * 9000, answers=(LARGE, "Old."))
    assert saved.returncode == 0, saved.stderr
    data = DAMAGES[name](sessions_path().read_bytes())
    sessions_path().write_bytes(data)
    return data


def set_aside() -> Path:
    """Return the file that was renamed."""
    (file,) = (f for f in sessions_path().parent.glob("*.damaged-*") if f.name[-1].isdigit())
    return file


def only_conversation() -> list[str]:
    with SessionStore(sessions_path(), print) as store:
        (row,) = store.recent()
        return [message.content for message in store.load(row["id"]).messages]


@pytest.mark.parametrize("name", ["other content", "cut"])
def test_a_one_shot_is_answered_and_saved(program: Program, name: str) -> None:
    data = damage(program, name)
    result = program.run("-p", "y")
    assert (result.returncode, result.stdout) == (0, b"An answer.\n")
    (warning,) = result.stderr.splitlines()
    assert warning.startswith(b"warning: ") and os.fsencode(set_aside()) in warning
    assert set_aside().read_bytes() == data and set_aside().stat().st_mode & 0o777 == 0o600
    assert only_conversation() == ["y", "An answer."]


def test_a_chat_goes_on_and_is_saved(program: Program, chat: Callable[..., Terminal]) -> None:
    data = damage(program, "random pages")
    terminal = chat("First.", "Second.", columns=300)
    for question, answer in (("one", "First."), ("two", "Second.")):
        terminal.type(f"{question}\r")
        text = terminal.wait_for(answer, 60)
    assert len(re.findall("was renamed", text)) == 1 and str(set_aside()) in text
    terminal.type("\x04")
    assert terminal.wait_end() == 0
    assert set_aside().read_bytes() == data
    assert only_conversation() == ["one", "First.", "two", "Second."]
