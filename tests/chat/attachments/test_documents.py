"""PDF, docx, pptx and xlsx as attachments: their text, pages, damage, bombs, missing libraries."""

import io
import os
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from swiftchat.chat.attachments.document import split_pages, with_pages
from swiftchat.chat.attachments.files import read_attachments
from swiftchat.errors import SwiftchatError, UsageError
from tests.support import documents
from tests.support.program import Program, assert_error

LIBRARIES = ("cryptography", "mammoth", "openpyxl", "pypdf", "pptx")


needs_libraries = pytest.mark.skipif(
    not all(map(find_spec, LIBRARIES)), reason="the extra documents is not installed"
)


def text_of(path: Path, part: str = "") -> str:
    (found,) = read_attachments([f"{path}{part}"])
    assert found.name == f"{path}{part}"
    return found.text


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "a.pdf"
    path.write_bytes(documents.pdf(*(f"This is leaf {number}." for number in range(1, 6))))
    return path


@needs_libraries
def test_the_pages_of_a_pdf_file(book: Path) -> None:
    whole = "".join(f"\n## Page {n}\n\nThis is leaf {n}.\n" for n in range(1, 6))
    assert text_of(book) == whole[1:]
    assert text_of(book, "#2-3") == "## Page 2\n\nThis is leaf 2.\n\n## Page 3\n\nThis is leaf 3.\n"
    assert text_of(book, "#5") == "## Page 5\n\nThis is leaf 5.\n"
    assert text_of(book, "#4-").count("leaf") == 2


@pytest.mark.parametrize("pages", [(1, 0), (3, 3), (3, 7), (3, 0)])
def test_names_of_pages_are_read_as_they_are_written(pages: tuple[int, int]) -> None:
    expected = None if pages == (1, 0) else ("a.pdf", pages)
    assert split_pages(with_pages("a.pdf", pages)) == expected


@needs_libraries
@pytest.mark.parametrize("part", ["#6", "#3-9", "#0", "#4-2"])
def test_pages_that_a_file_does_not_have(book: Path, part: str) -> None:
    with pytest.raises(UsageError, match="has 5 pages, no page") as error:
        text_of(book, part)
    assert error.value.hint == f"{book}#1-5"


def test_a_file_whose_name_looks_like_pages_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "notes#3").write_text("all of it")
    assert text_of(tmp_path / "notes#3") == "all of it"
    (tmp_path / "notes").write_text("a text")
    with pytest.raises(UsageError, match="notes has no pages"):
        text_of(tmp_path / "notes", "#4")


@needs_libraries
def test_the_text_of_a_docx_file(tmp_path: Path) -> None:
    path = tmp_path / "a.docm"
    macro = ("word/vbaProject.bin", b"Shell(1)")
    path.write_bytes(documents.docx("Tides", "High \x1bwater."))
    with pytest.raises(UsageError, match="cannot be read"):  # no XML may have an escape character
        text_of(path)
    path.write_bytes(documents.docx("Tides", "High water &amp; low.", extra=[macro]))
    assert text_of(path) == "# Tides\n\nHigh water & low.\n"
    with pytest.raises(UsageError, match="has no page numbers"):
        text_of(path, "#2")


@needs_libraries
def test_the_slides_of_a_pptx_file(tmp_path: Path) -> None:
    path = documents.pptx(tmp_path / "a.pptx")
    (found,) = read_attachments([str(path)])
    assert found.text == (
        "## Slide 1\n\nPlans\n\n- Buy tea\n- Sell tea\n\n"
        "## Slide 2\n\nSums\n\n| kind | price |\n| --- | --- |\n| green\\|tea | 3 |\n\n"
        "Notes: Speak slowly.\n\n## Slide 3\n\nSecret\n"
    )
    assert found.notes == [f"{path}: slide 3 is hidden"]
    assert text_of(path, "#1").startswith("## Slide 1\n\nPlans")


@needs_libraries
def test_the_sheets_of_an_xlsx_file(tmp_path: Path) -> None:
    path = documents.xlsx(tmp_path / "a.xlsx")
    (found,) = read_attachments([str(path)])
    assert found.text == (
        "## Sheet 1: Sales\n\n| day | cups | note |\n| --- | --- | --- |\n"
        "| 2026-01-02 | 3 | a\\|b c |\n| 2026-01-03T04:05:00 | 2.5 |\n\n"
        "## Sheet 2: Costs\n\n| rent | 7 |\n| --- | --- |\n"
    )
    assert found.notes == [f"{path}: the sheet Costs is hidden"]


def encrypted(content: bytes, password: str) -> bytes:
    from pypdf import PdfReader, PdfWriter

    writer, file = PdfWriter(PdfReader(io.BytesIO(content))), io.BytesIO()
    writer.encrypt(password, "owner", algorithm="AES-256")
    writer.write(file)
    return file.getvalue()


@needs_libraries
def test_encrypted_documents(tmp_path: Path, book: Path) -> None:
    path = tmp_path / "locked.pdf"
    path.write_bytes(encrypted(book.read_bytes(), "secret"))
    with pytest.raises(UsageError, match="is encrypted with a password"):
        text_of(path)
    path.write_bytes(encrypted(book.read_bytes(), ""))  # only its printing is restricted
    assert "leaf 5" in text_of(path)
    office = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(512)
    for name, problem in (("a.docx", "is encrypted"), ("a.doc", "is of an old format")):
        (tmp_path / name).write_bytes(office)
        with pytest.raises(UsageError, match=problem):
            text_of(tmp_path / name)


@needs_libraries
def test_pictures_of_pages_have_no_text(tmp_path: Path) -> None:
    path = tmp_path / "scan.pdf"
    path.write_bytes(documents.pdf("", ""))
    with pytest.raises(UsageError, match="has no text: its pages are empty or pictures"):
        text_of(path)
    path.write_bytes(documents.pdf("One.", "", "Three."))
    (found,) = read_attachments([str(path)])
    assert found.notes == [f"{path}: pages without text, empty or pictures: 2"]


@needs_libraries
def test_damaged_documents(tmp_path: Path, book: Path) -> None:
    whole = {
        "a.pdf": book.read_bytes(),
        "a.docx": documents.docx("Tides", "High water."),
        "a.pptx": documents.pptx(tmp_path / "whole.pptx").read_bytes(),
        "a.xlsx": documents.xlsx(tmp_path / "whole.xlsx").read_bytes(),
    }
    for name, content in whole.items():
        path = tmp_path / name
        path.write_bytes(content[: len(content) // 2])
        with pytest.raises(UsageError) as error:
            text_of(path)
        assert error.value.message.startswith(f"{path} ") and "\n" not in error.value.message


@needs_libraries
def test_archives_that_unpack_to_too_much(tmp_path: Path) -> None:
    """A bomb is refused by the sizes that it announces, and by the limit of memory without them."""
    path = tmp_path / "bomb.docx"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr("word/document.xml", b"")
        archive.infolist()[-1].file_size = 513 << 20
    with pytest.raises(UsageError, match="larger than 512 MiB when it is unpacked"):
        text_of(path)
    entities = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">' + "".join(
        f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr("word/document.xml", f"{entities}]><x>&i;</x>")
    with pytest.raises(UsageError, match=r"bomb\.docx "):
        text_of(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
    with pytest.raises(UsageError, match="is an archive, not a document"):
        text_of(path)


def test_a_text_about_documents_is_a_text(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('MARK = b"%PDF-"\n')
    (tmp_path / "a.docx").write_text("not an archive")
    assert text_of(tmp_path / "a.py") == 'MARK = b"%PDF-"\n'
    assert text_of(tmp_path / "a.docx") == "not an archive"


@needs_libraries
def test_patterns_take_documents_and_say_what_is_wrong_with_others(
    tmp_path: Path, book: Path
) -> None:
    (tmp_path / "b.pdf").write_bytes(documents.pdf(""))
    found = read_attachments([f"{tmp_path}/*.pdf"])
    assert [one.name for one in found] == [str(book)]
    assert "b.pdf is left out: has no text" in found[0].notes[0]


def test_without_the_libraries_the_hint_installs_them(
    tmp_path: Path, book: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    for name in LIBRARIES:
        (tmp_path / "site" / f"{name}.py").write_text(f"raise ImportError(name={name!r})")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    )
    (tmp_path / "a.docx").write_bytes(documents.docx("Tides"))
    for path, package in ((book, "pypdf"), (tmp_path / "a.docx", "mammoth")):
        with pytest.raises(SwiftchatError, match=f"needs the package {package}") as error:
            text_of(path)
        assert error.value.hint == "pip install 'swiftchat[documents]'"


@needs_libraries
def test_a_document_in_a_prompt(program: Program, tmp_path: Path, book: Path) -> None:
    record = tmp_path / "ids"
    answer = {"text": "Five.", "records": str(record)}
    done = program.run("-p", "How many?", "-f", f"{book}#5", "--ctx-size", "256", answers=(answer,))
    assert (done.returncode, done.stdout) == (0, b"Five.\n")
    missing = program.run("-p", "How many?", "-f", f"{book}#9")
    assert_error(missing, 2, "has 5 pages, no page 9")
