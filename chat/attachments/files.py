"""Files as attachments: patterns, the encoding, refusal of everything but text."""

import glob
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from swiftchat.chat.attachments.attachment import Attachment
from swiftchat.errors import FileSystemError, UsageError
from swiftchat.weights.files.paths import user_path

TEXT_ONLY = "models read text files only"
_MAX_BYTES = 32 * 1024 * 1024
_BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "utf-8", b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
# Formats without zero bytes at their beginning.
_OTHER_FORMATS = (b"%PDF-", b"%!PS", b"{\\rtf")
_SAMPLE_CHARACTERS = 8192


def read_attachments(sources: Iterable[str], *, offline: bool = False) -> list[Attachment]:
    """Read files, patterns such as `src/**/*.py`, and pages at http and https addresses.

    Files that a pattern matches are left out if they are not text, with a note. Raises
    `UsageError` for a named file that is not text, for a folder, and for a pattern without text
    files; `FileSystemError` for a file that cannot be read; the errors of `fetch_page`.
    """
    return [each for source in sources for each in _attachments(source, offline)]


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


def _attachments(source: str, offline: bool) -> Iterator[Attachment]:
    if source.lower().startswith(("http://", "https://")):
        # Imported here: most chats need no HTTP.
        from swiftchat.chat.attachments.page import fetch_page

        yield fetch_page(source, offline=offline)
        return
    name = str(user_path(source))
    if Path(name).is_dir():
        pattern = shlex.quote(f"{source.rstrip('/')}/*")
        raise UsageError(f"{source} is a folder", f"{pattern} attaches its files")
    if Path(name).exists() or not glob.has_magic(name):
        attachment = _file(name)
        if attachment is None:
            raise UsageError(f"{name} is not a text file", TEXT_ONLY)
        yield attachment
        return
    yield from _matching(name, source)


def _matching(pattern: str, source: str) -> Iterator[Attachment]:
    """Yield the text files that match a pattern, sorted; the first has a note on the others."""
    # Path.glob would need the pattern split into a root and a relative part.
    names = [
        name
        for name in sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207
        if Path(name).is_file()
    ]
    if not names:
        raise UsageError(f"no file matches {source}", "** also searches subfolders")
    read = [(name, _file(name)) for name in names]
    others = [name for name, attachment in read if attachment is None]
    found = [attachment for _, attachment in read if attachment is not None]
    if not found:
        raise UsageError(f"no file that matches {source} is a text file", TEXT_ONLY)
    notes = [f"{name} is left out: not a text file" for name in others]
    first = found[0]
    yield Attachment(first.name, first.text, (*notes, *first.notes))
    yield from found[1:]


def _file(name: str) -> Attachment | None:
    """Read a file; None if it is not a text file."""
    try:
        with Path(name).open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise FileSystemError.reading(name, error) from error
    if len(content) > _MAX_BYTES:
        raise UsageError(f"{name} is larger than {_MAX_BYTES >> 20} MiB", "attach a part of it")
    decoded = None if content.startswith(_OTHER_FORMATS) else decode_text(content)
    if decoded is None:
        return None
    text, num_invalid = decoded
    notes = [f"{name} is not valid UTF-8; bytes replaced: {num_invalid}"] if num_invalid else []
    return Attachment(name, text, notes)
