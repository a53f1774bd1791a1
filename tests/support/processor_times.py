"""A pytest plugin: the processor time of each test function, of its children, and of collection.

`python -m pytest -p tests.support.processor_times` prints the most expensive functions and files.
`--write-slow` also rewrites `tests/slow_tests.txt`, the functions that `-m "not slow"` leaves out.
Processor time does not depend on what else the machine computes, or hardly. A child counts for the
test that waits for its end.
"""

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

SLOW_TESTS = Path(__file__).parents[1] / "slow_tests.txt"
SLOW_S = 0.5
_NAME = "processor_s"
_NUM_PRINTED = 40
_spent: dict[str, float] = defaultdict(float)
_start = pytest.StashKey[float]()


def processor_s() -> float:
    return sum(os.times()[:4])


def slow_tests() -> frozenset[str]:
    """Return the names in `slow_tests.txt`: `FILE::FUNCTION`."""
    lines = SLOW_TESTS.read_text("utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def function_of(node_id: str) -> str:
    """Return a test's name without its parameters."""
    return node_id.partition("[")[0]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-slow", action="store_true", help="rewrite tests/slow_tests.txt")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    item.stash[_start] = processor_s()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    if call.when == "teardown":
        item.user_properties.append((_NAME, processor_s() - item.stash[_start]))
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "teardown":
        spent = dict(report.user_properties).get(_NAME, 0.0)
        assert isinstance(spent, float)
        _spent[function_of(report.nodeid)] += spent


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    files: dict[str, float] = defaultdict(float)
    for name, seconds in _spent.items():
        files[name.partition("::")[0]] += seconds
    total = sum(_spent.values())
    for title, table in (("function", _spent), ("file", files)):
        terminalreporter.section(f"processor time by {title}, of {total:.0f} s")
        for name, seconds in sorted(table.items(), key=lambda each: -each[1])[:_NUM_PRINTED]:
            terminalreporter.write_line(f"{seconds:8.1f} s  {name}")
    if terminalreporter.config.getoption("--write-slow"):
        _write(terminalreporter)


def _write(terminalreporter: pytest.TerminalReporter) -> None:
    """Keep the names of functions that did not run and still may exist."""
    kept = {name for name in slow_tests() if name not in _spent}
    slow = kept | {name for name, seconds in _spent.items() if seconds >= SLOW_S}
    head = f"# Test functions of {SLOW_S} s of processor time or more, all cases together.\n"
    SLOW_TESTS.write_text(head + "".join(f"{name}\n" for name in sorted(slow)), "utf-8")
    terminalreporter.write_line(f"{len(slow)} slow functions are in {SLOW_TESTS.name}")
