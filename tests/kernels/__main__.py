"""Compile all kernels for all processors, run the CPU kernels' tests with sanitizers, stamp them.

`python -m tests.kernels` checks what has changed since the stamp, `--all` everything. Four minutes
of processor time; needs gcc on Linux, but no GPU. The stamp is written for the parts whose tests
have all passed: none failed, none was skipped, and the sources did not change meanwhile.
"""

import argparse
import datetime
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.kernels import stamp
from tests.kernels.stamp import ROOT, Entry, Part


class Outcomes:
    """A pytest plugin: which tests were collected, and which of them passed."""

    def __init__(self) -> None:
        self._collected: set[str] = set()
        self._passed: set[str] = set()
        self._others: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._collected.update(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self._collected.update(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._others.add(report.nodeid)
        elif report.when == "call":
            self._passed.add(report.nodeid)

    def all_passed(self, file: Path) -> bool:
        """Return whether the file has tests, and each ran and passed, with its fixtures."""
        prefix = f"{file.relative_to(ROOT).as_posix()}::"
        collected = {test for test in self._collected if test.startswith(prefix)}
        return bool(collected) and collected <= self._passed - self._others


def check(parts: Sequence[Part], file: Path = stamp.STAMP) -> list[str]:
    """Run the checks of these parts and stamp those that passed; return the names of the others."""
    digests = {part.name: part.digest() for part in parts}
    outcomes = Outcomes()
    os.environ.pop("PYTEST_ADDOPTS", None)  # it could leave tests out
    options = ["-q", "-n", "logical", "-p", "no:cacheprovider"]
    pytest.main([*options, *(str(part.check) for part in parts)], plugins=[outcomes])
    entries, failed = stamp.read(file), []
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    for part in parts:
        if outcomes.all_passed(part.check) and part.digest() == digests[part.name]:
            entries[part.name] = Entry(digests[part.name], part.compilers(), today)
        else:
            failed.append(part.name)
    stamp.write(entries, file)
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(prog=stamp.COMMAND, description=__doc__)
    parser.add_argument("--all", action="store_true", help="also what has not changed")
    options = parser.parse_args()
    os.chdir(ROOT)
    entries = stamp.read()
    parts = [part for part in stamp.PARTS if options.all or stamp.is_stale(part, entries)]
    if not parts:
        print("The kernels have not changed since they were checked.")
        return
    if failed := check(parts):
        sys.exit(f"error: not stamped: {', '.join(failed)}")
    print(f"{stamp.STAMP.relative_to(ROOT)} is written: commit it with the kernels.")


if __name__ == "__main__":
    main()
