"""Texts that a user gives as a file or on stdin, whatever their encoding."""

import contextlib
import os
import re
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from swiftchat.chat.attachments.hidden_text import hidden_text_notes
from swiftchat.chat.terminal.output import print_notice
from swiftchat.chat.terminal.streams import read_stdin
from swiftchat.errors import FileSystemError, UsageError
from swiftchat.weights.files.paths import user_path

TEXT_ONLY = "only text is read: UTF-8, or UTF-16 with a byte order mark"
MAX_TEXT_BYTES = 32 * 1024 * 1024
_BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "utf-8", b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
# Formats without zero bytes at their beginning.
_OTHER_FORMATS = (b"%PDF-", b"%!PS", b"{\\rtf")
_SAMPLE_CHARACTERS = 8192
# A word that looks like the name of a file, and not like JSON or a grammar.
_NAME = re.compile(r"""[^\s{}"'|]*/[^\s{}"'|]*|[^\s{}"'|]+\.[A-Za-z]\w{0,7}""")
_TEXT_OR_FILE = "name a file, or give a text"
_NO_TERMINAL = "type the text, or name a file"


class NotText(UsageError):
    """The content of a file is not a text, or a document of which no text can be read."""


@dataclass(frozen=True)
class UserText:
    """A decoded text; `notes` is what the user should know about it."""

    text: str
    notes: Sequence[str] = ()

    def told(self) -> str:
        """Print the notes on stderr and return the text."""
        for note in self.notes:
            print_notice(f"warning: {note}")
        return self.text


def text_or_file(argument: str, hint: str = _TEXT_OR_FILE) -> tuple[str, str | None]:
    """Return the text of an argument that is a text or a file, and the name of the file.

    It is the name of a file if that exists, `-` is stdin, and anything else is a text, without a
    name. Raises `FileSystemError` for a folder, for a word that looks like the name of a file which
    does not exist, and as `read_text`.
    """
    if argument == "-":
        return read_text(argument).told(), "stdin"
    looks_like_name = _NAME.fullmatch(argument) is not None
    try:
        path = user_path(argument)
        exists, is_folder = path.exists(), path.is_dir()
    except (FileSystemError, OSError, ValueError):  # too long for a name, or a null character
        if looks_like_name:
            raise
        return argument, None
    if looks_like_name and not exists:
        raise FileSystemError(f"cannot read {argument}: no such file", hint)
    if argument and is_folder:
        raise FileSystemError(f"{argument} is a folder", hint)
    return (read_text(argument).told(), argument) if argument and exists else (argument, None)


def read_text(source: str) -> UserText:
    """Read the text file that a user has named, or stdin for `-`.

    Raises `NotText`; `UsageError` for more than 32 MiB, a folder and a terminal; `FileSystemError`
    if the file cannot be read.
    """
    return user_text("stdin" if source == "-" else source, read_content(source, MAX_TEXT_BYTES))


def read_content(source: str, max_bytes: int) -> bytes:
    """Read the file that a user has named, or stdin for `-`; raises as `read_text` does."""
    try:
        if source == "-":
            if sys.stdin.isatty():
                raise UsageError("- is stdin, which is a terminal", _NO_TERMINAL)
            content = read_stdin(max_bytes, _tell_silence)
        else:
            content = _read_file(source, max_bytes)
    except OSError as error:
        name = "stdin" if source == "-" else source
        raise FileSystemError.reading(name, error) from error
    if len(content) > max_bytes:
        name = "stdin" if source == "-" else source
        raise UsageError(f"{name} is larger than {max_bytes >> 20} MiB", "give a part of it")
    return content


def _read_file(source: str, max_bytes: int) -> bytes:
    path = user_path(source)
    if path.is_dir():
        raise UsageError(f"{source} is a folder", "name a file")
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) and _is_own_output(status):
        raise UsageError(f"{source} is an output of this program", "name a file")
    with path.open("rb") as file:
        if stat.S_ISCHR(status.st_mode) and file.isatty():
            raise UsageError(f"{source} is a terminal", _NO_TERMINAL)
        return file.read(max_bytes + 1)


def _is_own_output(status: os.stat_result) -> bool:
    """Return whether reading a pipe would wait for what this process itself writes."""
    if not (stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode)):
        return False
    with contextlib.suppress(OSError):
        return any(os.path.samestat(status, os.fstat(descriptor)) for descriptor in (1, 2))
    return False


def read_stdin_text(*, may_be_missing: bool = False) -> UserText:
    """Read stdin to its end; raises as `read_text` does.

    With `may_be_missing` a stdin that cannot be read, as under `nohup`, has an empty text.
    """
    try:
        return user_text("stdin", read_content("-", MAX_TEXT_BYTES))
    except FileSystemError:
        if not may_be_missing:
            raise
        return UserText("")


def decode_text(content: bytes) -> tuple[str, int] | None:
    """Decode a text, with \\n as line ends; None if it is not a text.

    Also returns the number of bytes that are not valid in the encoding (UTF-8, or UTF-16 with a
    byte order mark); they are replaced by U+FFFD.
    """
    mark = next((mark for mark in _BYTE_ORDER_MARKS if content.startswith(mark)), b"")
    encoding = _BYTE_ORDER_MARKS.get(mark, "utf-8")
    text = content.removeprefix(mark).decode(encoding, "replace")
    num_invalid = text.count("\ufffd") - content.count("\ufffd".encode(encoding))
    sample = text[:_SAMPLE_CHARACTERS]
    is_control = [character < " " and character not in "\t\n\r\f\x1b" for character in sample]
    is_replaced = sample.count("\ufffd") if num_invalid else 0
    if "\0" in text or 10 * (sum(is_control) + is_replaced) > 3 * len(sample):
        return None
    return text.replace("\r\n", "\n"), num_invalid


def user_text(name: str, content: bytes) -> UserText:
    """Return the content of a file as a text. Raises `NotText`."""
    decoded = None if content.startswith(_OTHER_FORMATS) else decode_text(content)
    if decoded is None:
        raise NotText(f"{name} is not a text file", TEXT_ONLY)
    text, num_invalid = decoded
    notes = [f"{name} is not valid UTF-8; bytes replaced: {num_invalid}"] if num_invalid else []
    return UserText(text, [*notes, *hidden_text_notes(name, text)])


def _tell_silence() -> None:
    print_notice("reading stdin, which has sent nothing yet; < /dev/null if nothing comes there")
