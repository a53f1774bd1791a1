"""The error for a file that cannot be read says what to check."""

import errno
import os

import pytest

from swiftchat.errors import FileSystemError


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.ENOENT, "check the path"),
        (errno.ENOTDIR, "check the path"),
        (errno.EACCES, "check its permissions (ls -l)"),
    ],
)
def test_the_hint_follows_from_the_cause(number: int, hint: str) -> None:
    error = FileSystemError.reading("notes.txt", OSError(number, os.strerror(number)))
    assert str(error) == f"cannot read notes.txt: {os.strerror(number)}"
    assert error.hint == hint and error.exit_code == 8
