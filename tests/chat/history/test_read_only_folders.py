"""Folders of the user that cannot be written: a chat works, and what was saved can be read."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.program import Program, assert_error
from tests.support.serve_processes import SWIFTCHAT

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


@pytest.mark.fault(41)
def test_a_one_shot_is_answered_and_explicit_writes_fail(
    program: Program, read_only: list[str]
) -> None:
    def run(*command: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([*read_only, *command], input=b"", capture_output=True)

    listed = run(*SWIFTCHAT, "sessions", "list", "--all")
    assert listed.returncode == 0 and b"first question" in listed.stdout
    session_id = listed.stdout.decode().split("\t")[0]
    assert_error(run(*SWIFTCHAT, "sessions", "rm", "-y", session_id), 8)
    result = run(*program.command("An answer.", options=("-c", "-p", "and then?")))
    assert (result.returncode, result.stdout) == (0, b"An answer.\n")
    assert result.stderr.count(b"not saved") == 1
    assert run(*SWIFTCHAT, "sessions", "list", "--all").stdout == listed.stdout
