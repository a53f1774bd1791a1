"""Fault 3: control characters or bidirectional overrides in an answer, a saved conversation, the
name of a model or of a tensor, or the text of an error.

Required: the terminal receives visible glyphs instead; one function,
`swiftchat.chat.terminal.sanitize`, replaces them before the terminal.

Provoked by: OSC, CSI, C0, C1, DEL and overrides in raw bytes of a terminal. The answer arrives byte
by byte, so it is split at every point.
"""

import json
from collections.abc import Callable
from pathlib import Path

from tests.support import fake_engine
from tests.support.program import Program, assert_error
from tests.support.serve_processes import swiftchat
from tests.support.terminal import Terminal
from tests.support.tiny_llama import tiny_llama

EVIL = "e\x1b]52;c;eA==\x07\x9bJ\x7f\u202e"
SEEN = "e␛]52;c;eA==␇�J␡�"
ATTACKS = (b"\x1b]52", b"\xc2\x9b", b"\x7f", "\u202e".encode(), b"\x07")


def assert_harmless(output: bytes) -> None:
    assert not [attack for attack in ATTACKS if attack in output]


def test_answers_and_commands_are_sanitized(chat: Callable[..., Terminal]) -> None:
    answer = (
        f"Begin {EVIL} **{EVIL}** `{EVIL}`\n\n```\n{EVIL}\n```\n\n|{EVIL}|b|\n|-|-|\n|c|d|\nEnd"
    )
    terminal = chat(answer)
    terminal.type("x\r")
    text = terminal.wait_for("End", 60)
    assert text.count("]52;c;eA==") == 5
    for number, command in enumerate(["/set temperature \x1b]52\r", "/model /no/such\x0b\r"], 1):
        terminal.type(command)
        terminal.wait_for(
            lambda text, n=number: text.count("error: ") == n and terminal.is_at_prompt, 60
        )
    terminal.type("\x04")
    assert terminal.wait_end() == 0
    assert_harmless(terminal.raw)


def test_names_and_saved_conversations_are_sanitized(tmp_path: Path) -> None:
    program = Program(fake_engine.make_folder(tmp_path / EVIL))
    file = tmp_path / "talk.json"
    file.write_text(json.dumps([{"role": "user", "content": EVIL}]))
    assert swiftchat("sessions", "import", str(file)).returncode == 0
    command, *args = program.command("Fine.", options=("-c",))
    terminal = Terminal(command, args)
    terminal.wait_for(SEEN, 60)  # the unanswered question is the draft
    terminal.type("\r")
    terminal.wait_for("Fine.", 60)
    terminal.type("/sessions\r")
    terminal.wait_for("MESSAGES", 60)
    terminal.type("\x04")
    assert terminal.wait_end() == 0
    assert_harmless(terminal.raw)


def test_names_of_tensors_in_errors_are_sanitized(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    tiny_llama().save_pretrained(folder)
    file = folder / "model.safetensors"
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header[EVIL] = header.pop("model.norm.weight") | {"data_offsets": [0, 2**40]}
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    done = swiftchat("convert", str(folder), str(tmp_path / "out"))
    assert_error(done, 7, SEEN)
    assert_harmless(done.stderr)
