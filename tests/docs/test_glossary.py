"""The identifiers that docs/glossary.md names exist in the code."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("chat", "cuda", "engine", "errors", "tokenizer", "weights")
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
TERMS = [
    (cells[0].strip(), re.findall(r"`(\w+)`", cells[2]))
    for line in GLOSSARY.splitlines()
    if line.startswith("| ") and len(cells := line.strip("|\n").split("|")) == 3
]


def test_identifiers_of_the_terms_exist() -> None:
    files = (file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    words = {word for file in files for word in re.findall(r"\w+", file.read_text("utf-8"))}
    missing = {term: set(names) - words for term, names in TERMS if set(names) - words}
    assert not missing


def test_the_glossary_has_terms() -> None:
    assert len(TERMS) > 30
