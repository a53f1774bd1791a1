"""Fault 44: a slash command raises an unforeseen exception.

Required: one `error:` line and one `hint:` line, which names a report file with the traceback; the
conversation goes on.

Provoked by: a chat in a terminal in which every slash command raises a KeyError.
"""

import re
from pathlib import Path

from swiftchat.chat.commands.registry import BY_NAME
from swiftchat.chat.history.store import SessionStore, sessions_path
from tests.support.failing_commands import open_failing_chat
from tests.support.program import Program


def test_the_conversation_goes_on_after_every_command(program: Program) -> None:
    terminal = open_failing_chat(program, "First.", "Second.", columns=250)
    terminal.type("one\r")
    terminal.wait_for("First.", 60)
    reports = []
    for name in BY_NAME:
        start = len(terminal.raw)
        terminal.type(f"{name} x\r")

        def is_over(screen: str, start: int = start) -> bool:
            return b".txt\r\n" in terminal.raw[start:] and terminal.is_at_prompt

        terminal.wait_for(is_over, 60)
        output = terminal.raw[start:].decode()
        assert output.count("error: internal error: KeyError: 'unforeseen") == 1
        assert output.count("hint: ") == 1
        assert "Traceback" not in output and "\x1b[2J" not in output
        (report,) = re.findall(r"hint: please report it with the file\s+(\S+\.txt)", output)
        reports.append(Path(report))
    assert len(set(reports)) == len(BY_NAME)
    assert "in _fail" in reports[-1].read_text()
    terminal.type("two\r")
    terminal.wait_for("Second.", 60)
    terminal.type("\x04")
    assert terminal.wait_end() == 0
    with SessionStore(sessions_path(), print) as store:
        found = store.load(store.recent()[0]["id"])
    assert [message.content for message in found.messages] == ["one", "First.", "two", "Second."]
