"""docs/faults.md matches the table of faults and the markers of tests."""

from pathlib import Path

import pytest

from tests import faults


def test_faults_page_is_up_to_date() -> None:
    """Run `python -m tests.faults` to update the page."""
    assert faults.PAGE.read_text(encoding="utf-8") == faults.page()


def test_every_fault_has_a_test_that_needs_no_gpu() -> None:
    tests = [test for test in faults.marked_tests() if not test.needs_gpu]
    assert {number for test in tests for number in test.faults} == faults.FAULTS.keys()
    assert list(faults.FAULTS) == list(range(1, 54))


def file_of(folder: Path, *lines: str) -> Path:
    file = folder / "test_marked.py"
    file.write_text("\n".join((*lines, "def test_one(): ...")))
    return file


def test_markers_are_read_from_decorators(tmp_path: Path) -> None:
    file = file_of(tmp_path, "@pytest.mark.gpu", "@pytest.mark.fault(2, 11)")
    (test,) = faults.marked_tests_of(file)
    assert (test.file, test.name) == ("test_marked.py", "test_one")
    assert test.faults == [2, 11] and test.needs_gpu
    assert list(faults.marked_tests_of(file_of(tmp_path, "# pytest.mark.fault(2)"))) == []


@pytest.mark.parametrize("arguments", ["", "()", "(0)", "(54)", "(1, 99)", "(NUMBER)", "(n=1)"])
def test_a_marker_without_a_fault_is_an_error(tmp_path: Path, arguments: str) -> None:
    file = file_of(tmp_path, f"@pytest.mark.fault{arguments}")
    with pytest.raises(ValueError, match="test_one"):
        list(faults.marked_tests_of(file))


def test_exit_codes_are_those_of_the_requirement() -> None:
    fault = faults.Fault("a fault", "x, exit codes 129 and 143, or exit code 7.")
    assert fault.exit_codes == ["129", "143", "7"]
    assert faults.Fault("a fault", "the program goes on.").exit_codes == []
