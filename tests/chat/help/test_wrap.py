"""Help pages are filled again at every width: words stay in order, rows keep their columns."""

import os
import sys
from pathlib import Path

import pexpect
import pytest

from swiftchat.chat.help.pages import PAGES, page
from swiftchat.chat.help.wrap import wrapped
from swiftchat.chat.slash.registry import command_table


@pytest.mark.parametrize("width", [20, 40, 79, 80, 100])
@pytest.mark.parametrize("topic", PAGES)
def test_pages_fit_the_width_with_the_same_words(topic: str, width: int) -> None:
    text = page(topic, command_table, width)
    assert text.split() == page(topic, command_table).split()
    for line in text.splitlines():
        # Examples and long words are never broken.
        is_example = line.startswith("  ") and len(line.strip().split("  ")) == 1
        assert len(line) <= width or is_example or len(line.split()) == 1, line


def test_paragraphs_are_filled_and_rows_keep_their_columns() -> None:
    text = (
        "One two three\nfour.\n\n  -c           continue it, the last one\n  -m NAME      take it\n"
    )
    assert wrapped(text, 80) == text.replace("three\nfour", "three four")
    assert wrapped(text, 36).splitlines() == [
        "One two three four.",
        "",
        "  -c           continue it, the last",
        "               one",
        "  -m NAME      take it",
    ]
    assert wrapped(text, 24).splitlines()[2:] == [
        "  -c",
        "      continue it, the",
        "      last one",
        "  -m NAME      take it",
    ]
    assert wrapped(wrapped(text, 36), 80) == wrapped(text, 80)


def test_examples_stay_as_they_are() -> None:
    text = '  >>> """\n  ... two\n  ... lines"""\n'
    assert wrapped(text, 8) == text


@pytest.mark.parametrize("columns", [40, 100, 200])
def test_a_page_is_as_wide_as_the_window_up_to_100(columns: int, tmp_path: Path) -> None:
    child = pexpect.spawn(
        sys.executable,
        ["-P", "-m", "swiftchat.chat", "help", "gpu"],
        dimensions=(24, columns),
        env={**os.environ, "HOME": str(tmp_path), "COLUMNS": "", "LINES": ""},
        encoding="utf-8",
        timeout=60,
    )
    shown = child.read()
    child.close()
    assert shown.replace("\r", "") == page("gpu", command_table, min(columns, 100))
