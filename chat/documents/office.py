"""Texts (docx) by mammoth, presentations (pptx) by python-pptx, tables (xlsx) by openpyxl.

Macros, pictures, and addresses outside of the document are not read.
"""

import datetime
from collections.abc import Iterator
from typing import Any, BinaryIO

from swiftchat.chat.documents.content import Content, Page, PageRange, Unreadable, table
from swiftchat.chat.documents.markup import markdown_of_html

_NO_PAGES = "the program that shows it divides it into pages"


def read_docx(file: BinaryIO, wanted: PageRange) -> Content:
    """Return headings, paragraphs, lists, tables and notes. Raises `Unreadable` for pages."""
    import mammoth

    if not wanted.is_whole:
        raise Unreadable(f"has no page numbers: {_NO_PAGES}", "leave out the part behind #")
    pictureless = mammoth.images.img_element(lambda image: {"src": ""})
    html = mammoth.convert_to_html(file, convert_image=pictureless).value
    return Content([Page("", markdown_of_html(html))])


def read_pptx(file: BinaryIO, wanted: PageRange) -> Content:
    """Return the texts, tables and notes of each slide."""
    from pptx import Presentation

    slides = list(Presentation(file).slides)
    numbers = wanted.numbers(len(slides), "slide")
    notes: list[str] = []

    def pages() -> Iterator[Page]:
        for number in numbers:
            slide = slides[number - 1]
            if slide.element.get("show") == "0":
                notes.append(f"slide {number} is hidden")
            texts = [text for shape in slide.shapes for text in _texts_of(shape)]
            if slide.has_notes_slide and (frame := slide.notes_slide.notes_text_frame):
                texts += [f"Notes: {frame.text}"] if frame.text.strip() else []
            yield Page(f"Slide {number}", "\n\n".join(texts))

    return Content(pages(), notes)


def _texts_of(shape: Any) -> Iterator[str]:
    """Yield the texts of a shape, and of the shapes in a group."""
    if hasattr(shape, "shapes"):
        for inner in shape.shapes:
            yield from _texts_of(inner)
    elif shape.has_text_frame and shape.text_frame.text.strip():
        lines = shape.text_frame.paragraphs
        is_list = len(lines) > 1
        yield "\n".join(
            f"{'  ' * line.level}{'- ' if is_list else ''}{line.text.replace(chr(11), ' ')}"
            for line in lines
            if line.text.strip()
        )
    elif getattr(shape, "has_table", False):
        yield table([[cell.text for cell in row.cells] for row in shape.table.rows])


def read_xlsx(file: BinaryIO, wanted: PageRange) -> Content:
    """Return each sheet as a table, with the values that its formulas had when it was saved."""
    from openpyxl import load_workbook

    book = load_workbook(file, read_only=True, data_only=True, keep_links=False)
    sheets = book.worksheets
    numbers = wanted.numbers(len(sheets), "sheet")
    notes: list[str] = []

    def pages() -> Iterator[Page]:
        for number in numbers:
            sheet = sheets[number - 1]
            if sheet.sheet_state != "visible":
                notes.append(f"the sheet {sheet.title} is hidden")
            sheet.reset_dimensions()  # which a file may say wrong
            rows = (_filled(row) for row in sheet.iter_rows(values_only=True))
            yield Page(f"Sheet {number}: {sheet.title}", table([row for row in rows if row]))

    return Content(pages(), notes)


def _filled(row: tuple[Any, ...]) -> list[str]:
    """Return the texts of a row up to its last cell with a value."""
    texts = [_text_of(value) for value in row]
    while texts and not texts[-1]:
        texts.pop()
    return texts


def _text_of(value: Any) -> str:
    match value:
        case None:
            return ""
        case datetime.datetime() if value.time() == datetime.time():
            return value.date().isoformat()
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case float() if value.is_integer() and abs(value) < 1e15:
            return str(int(value))
    return str(value)
