"""The output of a batch: a file that keeps answers when the program is killed, or stdout."""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from swiftchat.chat.subcommands.batch.answers import Record
from swiftchat.chat.subcommands.batch.lines import Line
from swiftchat.chat.terminal.output import write
from swiftchat.errors import FileSystemError, UsageError
from swiftchat.weights.files.lock import exclusive_lock

# Half of a surrogate pair, which JSON can hold and UTF-8 cannot, stays an escape of JSON.
_ENCODING: dict[str, Any] = {"encoding": "utf-8", "errors": "backslashreplace"}


class Output(Protocol):
    """Receives the record of each line once. `kept` are the numbers of lines that it has."""

    kept: set[int]

    def add(self, record: Record) -> None:
        """Write a record, or keep it until the records before it are written."""

    def finish(self) -> None:
        """Call after the last record."""


class AnswerFile:
    """A file with one record on each line.

    Records are appended as they arrive, so that a killed program loses none, and `finish` sorts
    them by line unless `as_finished`. Records from before stay, without those of errors.
    """

    def __init__(self, path: Path, lines: Sequence[Line], as_finished: bool) -> None:
        self._path, self._as_finished = path, as_finished
        kept = _kept_records(path, {line.number: line.key for line in lines})
        self.kept = set(kept)
        self._replace(kept.values())
        self._file = path.open("a", **_ENCODING)

    def add(self, record: Record) -> None:
        try:
            self._file.write(_text(record))
            self._file.flush()
        except OSError as error:
            raise _write_error(self._path, error) from error

    def finish(self) -> None:
        self._file.close()
        if not self._as_finished:
            # Not `splitlines`: a text may contain other line separators.
            *lines, _ = self._path.read_text("utf-8").split("\n")
            records = map(json.loads, lines)
            self._replace(_text(one) for one in sorted(records, key=lambda one: one["line"]))

    def _replace(self, texts: Iterable[str]) -> None:
        """Replace the file by a complete one."""
        new = self._path.with_name(f".{self._path.name}.new")
        try:
            with new.open("w", **_ENCODING) as file:
                file.writelines(texts)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
        except OSError as error:
            raise _write_error(self._path, error) from error


class Stdout:
    """Prints records in the order of the lines, or as they arrive."""

    def __init__(self, lines: Sequence[Line], as_finished: bool) -> None:
        self.kept: set[int] = set()
        self._missing = [] if as_finished else [line.number for line in reversed(lines)]
        self._waiting: dict[int, Record] = {}

    def add(self, record: Record) -> None:
        if not self._missing:
            write(_text(record))
            return
        self._waiting[record["line"]] = record
        while self._missing and self._missing[-1] in self._waiting:
            write(_text(self._waiting.pop(self._missing.pop())))

    def finish(self) -> None:
        return


@contextmanager
def open_output(
    path: Path | None, lines: Sequence[Line], *, as_finished: bool, overwrite: bool
) -> Iterator[Output]:
    """Yield the output at a path, or stdout; raises `UsageError` if it has other answers."""
    if path is None:
        yield Stdout(lines, as_finished)
        return

    def is_locked() -> None:
        raise UsageError(f"another swiftchat batch writes {path}", "choose another file with -o")

    try:
        with exclusive_lock(path, is_locked):
            if overwrite:
                path.unlink(missing_ok=True)
            yield AnswerFile(path, lines, as_finished)
    except OSError as error:
        raise _write_error(path, error) from error


def _kept_records(path: Path, keys: dict[int, str]) -> dict[int, str]:
    """Return the lines of the file that hold an answer, by the number of the input's line.

    A killed program may leave half a line at the end, which is left out. Raises `UsageError` if
    the file has anything else than answers to these lines.
    """
    if not path.exists():
        return {}
    kept: dict[int, str] = {}
    *texts, _ = path.read_bytes().decode("utf-8", "replace").split("\n")
    for number, text in enumerate(texts, 1):
        try:
            record = json.loads(text)
            line, is_answer = record["line"], "error" not in record
            is_same = keys.get(line) == record["key"]
        except (ValueError, TypeError, KeyError, RecursionError):
            is_same = False
        if not is_same:
            raise UsageError(
                f"line {number} of {path} is not an answer to a line of this input",
                "choose another file with -o, or --overwrite",
            )
        if is_answer:
            kept[line] = f"{text}\n"
    return kept


def _text(record: Record) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


def _write_error(path: Path, error: OSError) -> FileSystemError:
    return FileSystemError(f"cannot write {path}: {error.strerror}")
