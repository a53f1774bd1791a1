"""Progress of long operations on stderr, as bars on a terminal and single lines elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from swiftchat.chat.gate import visible


@contextmanager
def reported(quiet: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function (label, done, total) that shows how far something is."""
    if quiet:
        yield lambda label, done, total: None
    elif sys.stderr.isatty():
        with _bars() as report:
            yield report
    else:
        seen: set[str] = set()

        def report_once(label: str, done: int, total: int) -> None:
            if label not in seen:
                seen.add(label)
                print(f"{visible(label)} …", file=sys.stderr, flush=True)

        yield report_once


@contextmanager
def _bars() -> Iterator[Callable[[str, int, int], None]]:
    # Here, not at the top: rich takes 80 ms, and most commands show no progress.
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskID,
        TextColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def report(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = progress.add_task(escape(visible(label)), total=total)
            progress.update(tasks[label], completed=done, total=total)

        yield report
