"""PDF, docx, pptx and xlsx as attachments: Markdown that a process of its own makes of them."""

import json
import re
import subprocess

from swiftchat.chat.attachments.hidden_text import hidden_text_notes
from swiftchat.chat.attachments.user_text import NotText, UserText
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.errors.interpreter import child_folder, python_module

MAX_BYTES = 128 << 20
# Files of these names may be larger than a text.
DOCUMENT_SUFFIXES = (".pdf", ".docx", ".docm", ".pptx", ".pptm", ".xlsx", ".xlsm")
DOCUMENT_TYPES = (
    "application/pdf",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
)
_REAL_S = 300.0  # the process limits its processor time itself; a busy machine gives it less
_PAGES = re.compile(r"(?P<file>.+)#(?P<first>\d{1,6})(?P<to>-(?P<last>\d{1,6})?)?")
_OLD_OFFICE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # also around encrypted files of new programs
_CONTENT_TYPES = b"[Content_Types].xml"  # a part of every docx, pptx and xlsx
_TOO_MUCH = "attach a part of it, such as NAME#1-20"


def split_pages(source: str) -> tuple[str, tuple[int, int]] | None:
    """Return the name and the pages of `a.pdf#3-7`, 0 for the last one; None without pages."""
    match = _PAGES.fullmatch(source)
    if match is None:
        return None
    first = int(match["first"])
    return match["file"], (first, int(match["last"] or 0) if match["to"] else first)


def with_pages(name: str, pages: tuple[int, int]) -> str:
    """Return the name of pages of a document, as `split_pages` reads it."""
    first, last = pages
    if pages == (1, 0):
        return name
    return f"{name}#{first}" if first == last else f"{name}#{first}-{last or ''}"


def is_document(name: str, content: bytes) -> bool:
    """Return whether a content is a document of a format that can be read, by its beginning."""
    is_named = name.lower().endswith(".pdf")
    return (
        content.startswith((b"%PDF-", _OLD_OFFICE))
        or (content.startswith(b"PK\x03\x04") and _CONTENT_TYPES in content)
        or (is_named and b"%PDF-" in content[:1024])
    )


def read_document(name: str, content: bytes, pages: tuple[int, int] = (1, 0)) -> UserText:
    """Return a document as Markdown, with a heading for each page, slide or sheet.

    `pages` are the first and the last one, 0 for the end. Control characters are replaced by
    visible glyphs. Raises `NotText` for a document that is damaged, encrypted, without text or too
    large, and without the libraries.
    """
    if content.startswith(_OLD_OFFICE):
        is_new = name.lower().endswith(DOCUMENT_SUFFIXES)
        problem = "is encrypted" if is_new else "is of an old format"
        raise NotText(f"{name} {problem}", "save a copy without password as .docx, .pptx or .xlsx")
    process = subprocess.Popen(
        python_module("swiftchat.chat.documents.reader", *map(str, pages)),
        cwd=child_folder(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        output, _ = process.communicate(content, _REAL_S)
        answer = json.loads(output)
    except (subprocess.TimeoutExpired, ValueError):  # ended by a limit before it answered
        raise NotText(f"{name} takes too long or too much memory to be read", _TOO_MUCH) from None
    finally:
        process.kill()
        process.wait()
    if "reason" in answer:
        raise NotText(f"{name} {answer['reason']}", answer["hint"].replace("NAME", name))
    text = answer["text"]
    notes = [f"{name}: {note}" for note in answer["notes"]]
    return UserText(sanitize(text), [*notes, *hidden_text_notes(name, text)])
