"""The stamp is of the kernels as they are, and is written only after their check has passed."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.kernels import __main__ as program
from tests.kernels import stamp
from tests.kernels.stamp import Entry, Part

FIRST, SECOND = "tests/kernels/check_cpu.py::test_first", "tests/kernels/check_cpu.py::test_second"
PART = replace(stamp.PARTS[0], digest=lambda: "now", compilers=lambda: "a compiler")
PASSED = [(test, when, "passed") for test in (FIRST, SECOND) for when in ("call", "teardown")]


@pytest.mark.parametrize("part", stamp.PARTS, ids=lambda part: part.name)
def test_the_kernels_were_checked_as_they_are(part: Part) -> None:
    assert not stamp.is_stale(part, stamp.read()), (
        f"the {part.name} kernels, or what compiles them, changed since they were checked: "
        f"run `{stamp.COMMAND}` and commit {stamp.STAMP.name}"
    )


def stamped(monkeypatch: pytest.MonkeyPatch, file: Path, part: Part, reports: Iterable[Any]) -> str:
    """Check a part with these outcomes of its two tests; return the digest in the stamp then."""

    def run_tests(arguments: list[str], plugins: list[program.Outcomes]) -> None:
        assert str(part.check) in arguments
        (outcomes,) = plugins
        outcomes.pytest_xdist_node_collection_finished([FIRST, SECOND])
        for test, when, outcome in reports:
            location = (test.partition("::")[0], 0, "")
            report = pytest.TestReport(test, location, {}, outcome, None, when)
            outcomes.pytest_runtest_logreport(report)

    stamp.write({part.name: Entry("before", "another", "2000-01-01")}, file)
    monkeypatch.setattr(pytest, "main", run_tests)
    failed = program.check([part], file)
    found = stamp.read(file)[part.name].digest
    assert failed == ([part.name] if found == "before" else [])
    return found


def test_a_part_whose_tests_passed_is_stamped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stamped(monkeypatch, tmp_path / "stamp.json", PART, PASSED) == "now"
    entry = stamp.read(tmp_path / "stamp.json")[PART.name]
    assert entry.compilers == "a compiler" and entry.date > "2000-01-01"


@pytest.mark.parametrize(
    "reports",
    [
        [],
        [report for report in PASSED if report[0] == FIRST],
        [*PASSED[:-2], (SECOND, "call", "failed"), PASSED[-1]],
        [*PASSED[:-2], (SECOND, "setup", "skipped"), PASSED[-1]],
        [*PASSED[:-1], (SECOND, "teardown", "failed")],
    ],
    ids=["none ran", "one did not run", "one failed", "one was skipped", "one failed at its end"],
)
def test_other_outcomes_leave_the_stamp(
    reports: list[tuple[str, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stamped(monkeypatch, tmp_path / "stamp.json", PART, reports) == "before"


def test_a_change_during_the_check_leaves_the_stamp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = iter(["now", "later"])
    part = replace(PART, digest=lambda: next(digests))
    assert stamped(monkeypatch, tmp_path / "stamp.json", part, PASSED) == "before"


def test_a_file_without_tests_does_not_pass() -> None:
    assert not program.Outcomes().all_passed(PART.check)


def test_the_digest_depends_on_names_contents_and_facts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stamp, "ROOT", tmp_path)
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"ab")
    second.write_bytes(b"c")
    known = [
        stamp.digest([first, second]),
        stamp.digest([first]),
        stamp.digest([second]),
        stamp.digest([first, second], "fact"),
    ]
    assert stamp.digest([second, first]) == known[0]
    first.write_bytes(b"a")
    second.write_bytes(b"bc")
    known.append(stamp.digest([first, second]))
    first.rename(tmp_path / "other")
    known.append(stamp.digest([tmp_path / "other", second]))
    assert len(set(known)) == len(known)


@pytest.mark.parametrize(
    ("part", "pattern"),
    [("cuda", "cuda/kernels/*/*.cuh"), ("cuda", "cuda/kernels/*/*.cu")]
    + [
        ("cpu", f"engine/cpu/{name}")
        for name in ("kernels/*.c", "kernels/*.h", "compile_kernels.py")
    ]
    + [(part.name, f"tests/kernels/{part.check.name}") for part in stamp.PARTS],
)
def test_a_changed_file_makes_the_stamp_stale(
    part: str, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checked,) = (each for each in stamp.PARTS if each.name == part)
    before = checked.digest()
    changed = sorted(stamp.ROOT.glob(pattern))[0]
    read = Path.read_bytes
    monkeypatch.setattr(
        Path, "read_bytes", lambda file: read(file) + b" " * (file.samefile(changed))
    )
    assert checked.digest() != before


def test_a_variant_more_makes_the_stamp_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    before, fewer = stamp.cuda_digest(), stamp.compilations()[:-1]
    monkeypatch.setattr(stamp, "compilations", lambda: fewer)
    assert stamp.cuda_digest() != before
