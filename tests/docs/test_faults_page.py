"""docs/faults.md matches the tests in tests/faults."""

from pathlib import Path

import pytest

from tests.support import faults_page


def test_faults_page_is_up_to_date() -> None:
    """Run `python -m tests.faults` to update the page."""
    assert faults_page.PAGE.read_text(encoding="utf-8") == faults_page.page()


def test_every_fault_has_one_file() -> None:
    numbers = [fault.number for fault in faults_page.faults()]
    assert numbers == list(range(1, faults_page.NUM_FAULTS + 1))


@pytest.mark.parametrize(
    "docstring",
    [
        "Fault 2: a fault.\n\nRequired: x.\n\nProvoked by: y.",  # the number of another file
        "Fault 1: a fault.\n\nRequired: x.",
        "Fault 1: a fault.\n\nRequired: x.\n\nProvoked by: y.\n\nMore.",
        "A fault.\n\nRequired: x.\n\nProvoked by: y.",
    ],
)
def test_an_incomplete_docstring_is_an_error(tmp_path: Path, docstring: str) -> None:
    file = tmp_path / "test_01_fault.py"
    file.write_text(f'"""{docstring}\n"""\n')
    with pytest.raises(ValueError, match=r"test_01_fault.py"):
        faults_page.read(file)


def test_the_page_has_the_exit_codes(tmp_path: Path) -> None:
    file = tmp_path / "test_01_fault.py"
    file.write_text(
        '"""Fault 1: a\nfault.\n\nRequired: x, exit codes 129 and 143.\n\nProvoked by: 7.\n"""\n'
    )
    fault = faults_page.read(file)
    assert (fault.name, fault.exit_codes) == ("a fault", ["129", "143"])
