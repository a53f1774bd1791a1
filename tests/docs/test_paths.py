"""Files that README and docs/ name exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = "chat|engine|cuda|tokenizer|weights|errors|tests|benchmarks|docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_and_folders_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    paths = re.findall(rf"`((?:{FOLDERS})/[\w./-]*)`", text)
    links = re.findall(r"\]\(((?!https?:|#)[^)#]+)", text)
    missing = [path for path in paths if not (ROOT / path).exists()]
    missing += [link for link in links if not (page.parent / link).exists()]
    assert not missing


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_headings_lead_to_one(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\(((?!https?:)[^)#]*\.md|)#([^)]+)\)", text)
    missing = [
        link for link in links if link[1] not in anchors(page.parent / (link[0] or page.name))
    ]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_modules_exist(page: Path) -> None:
    names = re.findall(r"-m swiftchat\.([\w.]+)", page.read_text(encoding="utf-8"))
    places = [ROOT / name.replace(".", "/") for name in names]
    missing = [p for p in places if not (p.with_suffix(".py").exists() or p.is_dir())]
    assert not missing
