"""Fault 41: the user's folders cannot be written.

Required: a chat works, one warning says that it is not saved, what was saved before can be read;
what asks for a file explicitly is an error, exit code 8.

Provoked by: a read-only mount of the user's folders, or without the right to make one, folders
without the permission to write.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.program import Program, assert_error
from tests.support.serve_processes import SWIFTCHAT
from tests.support.terminal import Terminal

_NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]
_READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'


@pytest.fixture
def read_only(tmp_path: Path, program: Program) -> Iterator[list[str]]:
    """A command prefix that makes the user's folders, with one conversation, read-only."""
    assert program.run("-p", "first question").returncode == 0
    folder = tmp_path / "xdg"
    command = [*_NAMESPACE, "sh", "-c", _READ_ONLY, "sh", str(folder)]
    if subprocess.run([*command, "true"], capture_output=True).returncode == 0:
        yield command
        return
    if os.getuid() == 0:
        pytest.skip("root without user and mount namespaces can write everywhere")
    paths = [folder, *folder.rglob("*")]
    modes = [path.stat().st_mode for path in paths]
    for path, mode in zip(paths, modes, strict=True):
        path.chmod(mode & ~0o222)
    yield ["env"]
    for path, mode in zip(paths, modes, strict=True):
        path.chmod(mode)


def test_a_one_shot_is_answered_and_explicit_writes_fail(
    program: Program, read_only: list[str]
) -> None:
    def run(*command: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([*read_only, *command], input=b"", capture_output=True)

    listed = run(*SWIFTCHAT, "sessions", "list")
    assert listed.returncode == 0 and b"first question" in listed.stdout
    session_id = listed.stdout.decode().split("\t")[0]
    assert_error(run(*SWIFTCHAT, "sessions", "rm", "-y", session_id), 8)
    result = run(*program.command("An answer.", options=("-c", "-p", "and then?")))
    assert (result.returncode, result.stdout) == (0, b"An answer.\n")
    assert result.stderr.count(b"not saved") == 1
    assert run(*SWIFTCHAT, "sessions", "list").stdout == listed.stdout


def test_a_chat_goes_on_and_save_is_an_error(program: Program, read_only: list[str]) -> None:
    command, *args = [*read_only, *program.command("Fine.", "Again.", options=("-c",))]
    terminal = Terminal(command, args, columns=200)
    terminal.wait_for("continuing: first question", 60)
    for question, answer in (("more", "Fine."), ("again", "Again.")):
        terminal.type(f"{question}\r")
        text = terminal.wait_for(answer, 60)
    assert text.count("this conversation is not saved") == 1
    terminal.type("/save name\r")
    terminal.wait_for("error: conversations in", 60)
    terminal.wait_for("hint: ", 60)
    terminal.type("\x04")
    assert terminal.wait_end() == 0
    assert b"Traceback" not in terminal.raw
