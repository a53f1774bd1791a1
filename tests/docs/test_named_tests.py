"""Tests that the documents name exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_named_tests_exist() -> None:
    pages = "\n".join(file.read_text("utf-8") for file in (ROOT / "docs").rglob("*.md"))
    named = set(re.findall(r"`(test_\w+)`", pages))
    sources = "\n".join(file.read_text("utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"def (test_\w+)", sources))
    assert named and not named - defined
