"""Arguments that are the name of a file or a text."""

from pathlib import Path

import pytest

from swiftchat.chat.attachments.user_text import text_or_file
from swiftchat.errors import FileSystemError


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "two words").write_text("content")
    (tmp_path / "word").write_text("content")
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize("argument", ["word", "two words", "./word", "~/word"])
def test_an_existing_file_is_a_file(argument: str) -> None:
    assert text_or_file(argument) == ("content", argument)


@pytest.mark.parametrize(
    "argument",
    [
        "",
        "other",
        "two other words",
        "and/or is text",
        '{"$ref":"http://a.b/c"}',
        'root ::= "yes"|"no"',
        "start:/a+/|/b/",
        "nul\0",
        "long " * 2000,
        "End.",
        "3.14",
    ],
)
def test_anything_else_is_a_text(argument: str) -> None:
    assert text_or_file(argument) == (argument, None)


@pytest.mark.parametrize("argument", ["other.json", "./other", "a/b", "~/other.md", "folder"])
def test_what_looks_like_a_file_must_be_one(argument: str) -> None:
    with pytest.raises(FileSystemError):
        text_or_file(argument)
