"""PDF files, by pypdf."""

from collections.abc import Iterator
from typing import BinaryIO

from swiftchat.chat.documents.content import INSTALL_HINT, Content, Page, PageRange, Unreadable

_MAX_NAMED = 8  # pages without text in a note


def read_pdf(file: BinaryIO, wanted: PageRange) -> Content:
    """Return the text of each page. Raises `Unreadable` for an encrypted file, and without text."""
    # Imported here: the package is an extra.
    from pypdf import PdfReader
    from pypdf.errors import DependencyError

    reader = PdfReader(file)
    try:
        is_locked = reader.is_encrypted and not reader.decrypt("")
    except DependencyError:
        raise Unreadable("is encrypted, which needs cryptography", INSTALL_HINT) from None
    if is_locked:
        raise Unreadable("is encrypted with a password", "save a copy without the password")
    numbers = wanted.numbers(len(reader.pages), "page")
    notes: list[str] = []

    def pages() -> Iterator[Page]:
        empty = []
        for number in numbers:
            text = reader.pages[number - 1].extract_text().strip()
            if not text:
                empty.append(number)
            else:
                yield Page(f"Page {number}", text)
        if len(empty) == len(numbers):
            raise Unreadable(
                "has no text: its pages are empty or pictures",
                "a program for text recognition adds the text, such as ocrmypdf",
            )
        if empty:
            named = ", ".join(map(str, empty[:_MAX_NAMED])) + (
                ", …" if len(empty) > _MAX_NAMED else ""
            )
            notes.append(f"pages without text, empty or pictures: {named}")

    return Content(pages(), notes)
