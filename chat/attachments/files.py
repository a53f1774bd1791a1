"""Files as attachments: patterns, the encoding, refusal of everything but text."""

import glob
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from swiftchat.chat.attachments.attachment import Attachment
from swiftchat.chat.attachments.patterns import matching_files
from swiftchat.chat.attachments.user_text import TEXT_ONLY, NotText, read_text
from swiftchat.errors import UsageError
from swiftchat.weights.files.paths import user_path

_MAX_CHARACTERS = 32_000_000


def read_attachments(sources: Iterable[str], *, offline: bool = False) -> list[Attachment]:
    """Read files, patterns such as `src/**/*.py`, and pages at http and https addresses.

    Files that a pattern matches are left out, with a note, if they are not text, or if they are
    links to files out of its folder. Raises `UsageError` for a named file that is not text, for a
    folder, for a pattern without text files, and for more than 32 million characters in all;
    `FileSystemError` for a file that cannot be read; the errors of `fetch_page`.
    """
    return _bounded(each for source in sources for each in _attachments(source, offline))


def _bounded(attachments: Iterable[Attachment]) -> list[Attachment]:
    """Return the attachments. Raises `UsageError` as soon as they are too long."""
    found, size = [], 0
    for attachment in attachments:
        found.append(attachment)
        size += len(attachment.text)
        if size > _MAX_CHARACTERS:
            raise UsageError(
                f"the attachments have more than {_MAX_CHARACTERS} characters", "attach fewer files"
            )
    return found


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
        yield _file(name)
        return
    yield from _matching(name, source)


def _matching(pattern: str, source: str) -> Iterator[Attachment]:
    """Yield the text files that match a pattern, sorted; the first has a note on the others."""
    names, links = matching_files(_with_literals(pattern), source)
    notes = [f"{name} is left out: a link out of the folder; -f NAME attaches it" for name in links]

    def text_files() -> Iterator[Attachment]:
        for name in names:
            try:
                yield _file(name)
            except NotText:
                notes.append(f"{name} is left out: not a text file")

    found = _bounded(text_files())
    if not found:
        if not (names or links):
            raise UsageError(f"no file matches {source}", "** also searches subfolders")
        if not names:
            hint = f"name one to attach it: {shlex.quote(links[0])}"
            raise UsageError(f"only links out of the folder match {source}", hint)
        raise UsageError(f"no file that matches {source} is a text file", TEXT_ONLY)
    first = found[0]
    yield Attachment(first.name, first.text, (*notes, *first.notes))
    yield from found[1:]


def _with_literals(pattern: str) -> str:
    """Return a pattern in which the parts that exist as they stand, such as `[id]`, are literal."""
    done = ""
    for part in re.split("(/)", pattern):
        literal = glob.escape(part)
        # Behind ** the whole tree would be searched for each part.
        is_searched = literal != part and "**" not in f"{done}{part}"
        is_literal = is_searched and any(glob.iglob(done + literal))  # noqa: PTH207
        done += literal if is_literal else part
    return done


def _file(name: str) -> Attachment:
    read = read_text(name)
    return Attachment(name, read.text, read.notes)
