"""Small documents: PDF files and texts written by hand, presentations and tables by libraries."""

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

_W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


def pdf(*pages: str) -> bytes:
    """Return a PDF file with one line of ASCII text on each page; an empty page has none."""
    kids = " ".join(f"{4 + 2 * i} 0 R" for i in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for i, text in enumerate(pages):
        stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode() if text else b""
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources"
            b" << /Font << /F1 3 0 R >> >> /Contents %d 0 R >>" % (5 + 2 * i)
        )
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream))
    content, offsets = bytearray(b"%PDF-1.4\n"), []
    for number, one in enumerate(objects, 1):
        offsets.append(len(content))
        content += b"%d 0 obj\n%s\nendobj\n" % (number, one)
    start = len(content)
    content += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    content += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    size = len(objects) + 1
    content += b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (size, start)
    return bytes(content)


def docx(heading: str, *paragraphs: str, extra: Sequence[tuple[str, bytes]] = ()) -> bytes:
    """Return a text with a heading and paragraphs; `extra` are further parts of the archive."""
    style = '<w:pPr><w:pStyle w:val="Heading1"/></w:pPr>'
    body = f"<w:p>{style}<w:r><w:t>{heading}</w:t></w:r></w:p>"
    body += "".join(f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>" for text in paragraphs)
    main = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types">'
        '<Default Extension="rels"'
        ' ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/word/document.xml" ContentType="{main}"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}/relationships"><Relationship Id="r1"'
        f' Type="{_OFFICE}/officeDocument" Target="word/document.xml"/></Relationships>',
        "word/document.xml": f'<w:document xmlns:w="{_W}"><w:body>{body}</w:body></w:document>',
        "word/styles.xml": f'<w:styles xmlns:w="{_W}"><w:style w:type="paragraph"'
        ' w:styleId="Heading1"><w:name w:val="heading 1"/></w:style></w:styles>',
        "word/_rels/document.xml.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">'
        f'<Relationship Id="r2" Type="{_OFFICE}/styles" Target="styles.xml"/></Relationships>',
    }
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            archive.writestr(name, text)
        for name, content in extra:
            archive.writestr(name, content)
    return file.getvalue()


def pptx(path: Path) -> Path:
    """Write three slides: a title and bullets, a table with notes, a hidden one."""
    from pptx import Presentation
    from pptx.util import Inches

    presentation = Presentation()
    first = presentation.slides.add_slide(presentation.slide_layouts[1])
    first.shapes.title.text = "Plans"
    first.placeholders[1].text = "Buy tea\nSell tea"
    second = presentation.slides.add_slide(presentation.slide_layouts[5])
    second.shapes.title.text = "Sums"
    place = (Inches(1), Inches(2), Inches(4), Inches(1))
    table = second.shapes.add_table(2, 2, *place).table
    for cell, text in zip(table.iter_cells(), ("kind", "price", "green|tea", "3"), strict=True):
        cell.text = text
    second.notes_slide.notes_text_frame.text = "Speak slowly."
    hidden = presentation.slides.add_slide(presentation.slide_layouts[5])
    hidden.shapes.title.text = "Secret"
    hidden.element.set("show", "0")
    presentation.save(str(path))
    return path


def xlsx(path: Path) -> Path:
    """Write two sheets: numbers, a date and a formula without a value; a hidden one."""
    import datetime

    from openpyxl import Workbook

    book = Workbook()
    sheet = book.active
    sheet.title = "Sales"
    sheet.append(["day", "cups", "note"])
    sheet.append([datetime.date(2026, 1, 2), 3.0, "a|b\nc"])
    sheet.append([datetime.datetime(2026, 1, 3, 4, 5), 2.5, None])
    sheet["B9"] = "=SUM(B2:B3)"
    hidden = book.create_sheet("Costs")
    hidden.append(["rent", 7])
    hidden.sheet_state = "hidden"
    book.save(path)
    return path
