"""docs/glossary.md and the code use the same words."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("chat", "cuda", "engine", "errors", "tokenizer", "weights")
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
TERMS = [
    (cells[0].strip(), re.findall(r"`(\w+)`", cells[2]))
    for line in GLOSSARY.splitlines()
    if line.startswith("| ") and len(cells := line.strip("|\n").split("|")) == 3
]


@cache
def identifiers() -> frozenset[str]:
    """Names of classes, functions, parameters, attributes and variables in the source."""
    found: set[str] = set()
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef | ast.FunctionDef):
                    found.add(node.name)
                elif isinstance(node, ast.arg):
                    found.add(node.arg)
                elif isinstance(node, ast.Attribute):
                    found.add(node.attr)
                elif isinstance(node, ast.Name):
                    found.add(node.id)
    return frozenset(found)


@pytest.mark.parametrize(
    ("term", "names"),
    [(term, names) for term, names in TERMS if names],
    ids=lambda value: str(value),
)
def test_identifiers_of_a_term_exist(term: str, names: list[str]) -> None:
    missing = [name for name in names if name not in identifiers()]
    assert not missing, f"{term}: {missing}"


def test_the_glossary_has_terms() -> None:
    assert len(TERMS) > 30
