"""Control characters and overrides never reach the terminal, from whatever they come."""

import json
from pathlib import Path

import pytest

from tests.support import fake_engine
from tests.support.program import Program
from tests.support.serve_processes import swiftchat
from tests.support.terminal import Terminal

EVIL = "e\x1b]52;c;eA==\x07\x9bJ\x7f\u202e"
SEEN = "e␛]52;c;eA==␇�J␡�"
ATTACKS = (b"\x1b]52", b"\xc2\x9b", b"\x7f", "\u202e".encode(), b"\x07")
ANSWER = f"Begin {EVIL} **{EVIL}** `{EVIL}`\n\n```\n{EVIL}\n```\n\n|{EVIL}|b|\n|-|-|\n|c|d|\nEnd"


@pytest.mark.fault(3)
def test_answers_names_drafts_and_errors_are_sanitized(tmp_path: Path) -> None:
    """The answer arrives byte by byte, so it is split at every point."""
    program = Program(fake_engine.make_folder(tmp_path / EVIL))
    file = tmp_path / "talk.json"
    file.write_text(json.dumps([{"role": "user", "content": EVIL}]))
    assert swiftchat("sessions", "import", str(file)).returncode == 0
    command, *args = program.command(ANSWER, options=("-c",))
    terminal = Terminal(command, args)
    terminal.wait_for(SEEN, 60)  # the unanswered question is the draft
    terminal.type("\r")
    text = terminal.wait_for(lambda text: "End" in text and terminal.is_at_prompt, 60)
    assert text.partition("Begin")[2].count("]52;c;eA==") == 5
    for number, line in enumerate(["/set temperature \x1b]52\r", "/model /no/such\x0b\r"], 1):
        terminal.type(line)
        terminal.wait_for(
            lambda text, n=number: text.count("error: ") == n and terminal.is_at_prompt, 60
        )
    terminal.type("/sessions\r")
    terminal.wait_for("MESSAGES", 60)
    terminal.type("\x04")
    assert terminal.wait_end() == 0
    assert not [attack for attack in ATTACKS if attack in terminal.raw]
