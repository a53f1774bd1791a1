"""Locales of ASCII and Latin-1, and arguments and input that are not in their encoding."""

import os
import subprocess
from collections.abc import Callable

import pytest

from tests.support.program import Program
from tests.support.terminal import Terminal

TEXT = "Grün – 你"
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.fault(37)
@pytest.mark.parametrize(
    ("encoding", "environ"),
    [("utf-8", {}), ("latin-1", {"PYTHONIOENCODING": "latin-1"}), ("ascii", ASCII)],
)
def test_characters_outside_the_encoding_are_replaced(
    program: Program, encoding: str, environ: dict[str, str]
) -> None:
    command = [os.fsencode(part) for part in program.command(TEXT, options=("-p",))]
    result = subprocess.run(
        [*command, b"caf\xe9"],
        input=b"\xff\xfe",
        capture_output=True,
        env={**os.environ, **environ},
    )
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout == f"{TEXT}\n".encode(encoding, "replace")


@pytest.mark.fault(37)
def test_a_command_prints_its_table_in_ascii(program: Program) -> None:
    listing = program.run("config", "show", **ASCII)
    assert listing.returncode == 0 and b"top_k" in listing.stdout and listing.stdout.isascii()


@pytest.mark.fault(37)
def test_a_chat_with_an_ascii_locale(program: Program, chat: Callable[..., Terminal]) -> None:
    terminal = chat(TEXT, "Second.", **ASCII)
    terminal.type("caf\xe9\r")
    terminal.wait_for("Gr", 60)
    terminal.process.send(b"\xff\xfe ok\r")
    terminal.wait_for("Second.", 60)
    terminal.type("\x04")
    assert terminal.wait_end() == 0
    assert b"Traceback" not in terminal.raw
