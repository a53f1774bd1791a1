"""A sample of mutants: what changes, and that a spliced file computes the same until one is on."""

from pathlib import Path

import pytest

from tests.mutants.places import PACKAGES, places
from tests.mutants.schemata import Sampled, choose, splice

ROOT = Path(__file__).parents[2]
SOURCE = '''"""1 + 1"""
from typing import Literal

LIMIT: Literal[7] = 3


def clip(values: list[int], size: int = 2) -> list[int]:
    if not values and size > 0:
        raise ValueError(f"{size + 1}")
    kept = [
        value * 2 for value in values[:size] if value < LIMIT
    ]
    return kept if len(kept) > 1 else []
'''


@pytest.mark.parametrize(
    ("line", "text", "replacement"),
    [
        (4, "3", "4"),
        (7, "2", "1"),
        (8, "not values and size > 0", "not values or size > 0"),
        (8, "not values and size > 0", "False"),
        (8, "not values", "values"),
        (11, "value * 2", "value // 2"),
        (11, "size", "size + 1"),
        (11, "value < LIMIT", "value <= LIMIT"),
        (11, "value < LIMIT", "True"),
        (13, "len(kept) > 1", "len(kept) >= 1"),
    ],
)
def test_changes(line: int, text: str, replacement: str) -> None:
    found = {(place.line, place.text, place.replacement) for place in places(SOURCE)}
    assert (line, text, replacement) in found


def test_messages_docstrings_and_types_do_not_change() -> None:
    assert {place.line for place in places(SOURCE)} == {4, 7, 8, 11, 13}
    assert not any(place.text == "7" for place in places(SOURCE))


def _tree(folder: Path, source: str) -> Path:
    for package in PACKAGES:
        (folder / package).mkdir()
        (folder / package / "clip.py").write_text(source)
    return folder


def _clip(source: str, active: int) -> list[int]:
    names = {"__mutant__": lambda number: number == active}
    exec(compile(source, "clip.py", "exec"), names)
    result = names["clip"]([1, 2, 3])  # type: ignore[operator]
    assert isinstance(result, list)
    return result


def test_a_spliced_file_computes_the_same_until_a_mutant_is_on(tmp_path: Path) -> None:
    text = "value * 2 for value in values[:size] if value < LIMIT"
    doubled = Sampled(7, "chat/clip.py", 11, text, 0, "value * 2", "value // 2", "arithmetic")
    longer = Sampled(8, "chat/clip.py", 11, text, 31, "size", "size - 1", "slice bound")
    gone = Sampled(9, "chat/clip.py", 11, "return 5", 7, "5", "6", "number")
    tree = _tree(tmp_path, "# moved\n" + SOURCE)
    assert list(splice(tree, [doubled, longer, gone])) == [gone]
    spliced = (tree / "chat" / "clip.py").read_text()
    assert spliced.count("\n") == SOURCE.count("\n") + 1
    assert [_clip(spliced, number) for number in (0, 7, 8)] == [[2, 4], [0, 1], []]


def test_a_sample_of_the_program_can_be_found_again() -> None:
    sample = choose(ROOT, 1, 30)
    assert {mutant.file.partition("/")[0] for mutant in sample} == set(PACKAGES)
    assert len({(mutant.file, mutant.line) for mutant in sample}) == len(sample) == 30
    for mutant in sample:
        source = (ROOT / mutant.file).read_text()
        offset = mutant.offset(source)
        assert offset is not None and source.count("\n", 0, offset) == mutant.line - 1
        compile(
            source[:offset] + mutant.spliced() + source[offset + len(mutant.text) :], "", "exec"
        )
