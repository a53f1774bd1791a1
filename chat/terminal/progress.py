"""Progress of long operations on stderr: bars on a terminal, otherwise one line each."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING

from swiftchat.chat.terminal.amounts import format_bytes
from swiftchat.chat.terminal.output import print_notice
from swiftchat.chat.terminal.sanitize import sanitize

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


@contextmanager
def progress_display(quiet: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function (label, done, total) that displays progress in bytes."""
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
                print(f"{sanitize(label)} …", file=sys.stderr, flush=True)

        yield report_once


@contextmanager
def download_display(quiet: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """Yield the function of `progress_display`; Ctrl-C says how much is missing and how to go on.

    The label of a download is the same for all of its files.
    """
    done_bytes = total_bytes = 0
    try:
        with progress_display(quiet) as show:

            def report(label: str, done: int, total: int) -> None:
                nonlocal done_bytes, total_bytes
                done_bytes, total_bytes = done, total
                show(label, done, total)

            yield report
    except KeyboardInterrupt:
        if done_bytes < total_bytes and not quiet:
            missing, total = format_bytes(total_bytes - done_bytes), format_bytes(total_bytes)
            print_notice(
                f"stopped: {missing} of {total} are missing; the same command downloads the rest"
            )
        raise


@contextmanager
def _bars() -> Iterator[Callable[[str, int, int], None]]:
    with ExitStack() as stack:
        # Created with the first report: importing rich takes 80 ms, and a local model needs no bar.
        bars = cache(lambda: stack.enter_context(_progress()))
        tasks: dict[str, TaskID] = {}

        def report(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = bars().add_task(sanitize(label), total=total)
            bars().update(tasks[label], completed=done, total=total)

        yield report


@contextmanager
def _progress() -> "Iterator[Progress]":
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )
    console = Console(stderr=True)
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            yield progress
    finally:
        # A signal that came while the display started or stopped has left the cursor hidden.
        console.show_cursor()
