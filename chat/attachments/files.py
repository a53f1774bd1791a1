"""Files as attachments: texts and documents, patterns, refusal of everything else."""

import glob
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from swiftchat.chat.attachments.attachment import Attachment
from swiftchat.chat.attachments.document import (
    DOCUMENT_SUFFIXES,
    MAX_BYTES,
    is_document,
    read_document,
    split_pages,
    with_pages,
)
from swiftchat.chat.attachments.patterns import matching_files
from swiftchat.chat.attachments.user_text import (
    MAX_TEXT_BYTES,
    TEXT_ONLY,
    NotText,
    read_content,
    user_text,
)
from swiftchat.errors import UsageError
from swiftchat.weights.files.paths import user_path

_MAX_CHARACTERS = 32_000_000


def read_attachments(sources: Iterable[str], *, offline: bool = False) -> list[Attachment]:
    """Read files, patterns such as `src/**/*.py`, and pages at http and https addresses.

    `a.pdf#3-7` are pages of a document. Files that a pattern matches are left out, with a note, if
    they are neither text nor a document, or if they are links to files out of its folder. Raises
    `UsageError` for a named file that is not text, for a folder, for a pattern without text files,
    and for more than 32 million characters in all; `FileSystemError` for a file that cannot be
    read; the errors of `fetch_page`.
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
    is_there = Path(name).exists()
    if not is_there and (part := split_pages(name)) and Path(part[0]).exists():
        yield read_file(*part)
        return
    if is_there or not glob.has_magic(name):
        yield read_file(name)
        return
    yield from _matching(name, source)


def _matching(pattern: str, source: str) -> Iterator[Attachment]:
    """Yield the text files that match a pattern, sorted; the first has a note on the others."""
    names, links = matching_files(_with_literals(pattern), source)
    notes = [f"{name} is left out: a link out of the folder; -f NAME attaches it" for name in links]

    def text_files() -> Iterator[Attachment]:
        for name in names:
            try:
                yield read_file(name)
            except NotText as error:
                notes.append(f"{name} is left out: {error.message.removeprefix(f'{name} ')}")

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


def read_file(name: str, pages: tuple[int, int] = (1, 0)) -> Attachment:
    """Return a text file or a document, of which `pages` are wanted; 0 is the last one.

    Raises as `read_attachments` does.
    """
    is_named = name.lower().endswith(DOCUMENT_SUFFIXES)
    return text_of(name, read_content(name, MAX_BYTES if is_named else MAX_TEXT_BYTES), pages)


def text_of(name: str, content: bytes, pages: tuple[int, int] = (1, 0)) -> Attachment:
    """Return the text of a content, which is a text or a document; raises as `read_file` does."""
    if is_document(name, content):
        read = read_document(name, content, pages)
    elif pages != (1, 0):
        raise UsageError(f"{name} has no pages", "leave out the part behind #")
    else:
        read = user_text(name, content)
    return Attachment(with_pages(name, pages), read.text, read.notes)
