"""The output of a batch: a file that keeps answers when the program is killed, or stdout."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from swiftchat.chat.options.parameter import shown
from swiftchat.chat.subcommands.batch.answers import Record
from swiftchat.chat.subcommands.batch.lines import Line
from swiftchat.chat.terminal.output import write
from swiftchat.errors import UsageError
from swiftchat.weights.files import output as files
from swiftchat.weights.files.lock import exclusive_lock
from swiftchat.weights.files.output import write_error

# Half of a surrogate pair, which JSON can hold and UTF-8 cannot, stays an escape of JSON.
_ENCODING: dict[str, Any] = {"encoding": "utf-8", "errors": "backslashreplace"}


class Output(Protocol):
    """Receives the record of each line once. `kept` are the numbers of lines that it has.

    `is_resumable`: another run can find what this one has written.
    """

    kept: set[int]
    is_resumable: bool

    def add(self, record: Record) -> None:
        """Write a record, or keep it until the records before it are written."""

    def finish(self) -> None:
        """Call after the last record."""


class AnswerFile:
    """A file with one record on each line.

    Records are appended as they arrive, so that a killed program loses none, and `finish` sorts
    them by line unless `as_finished`. Records from before stay, without those of errors, unless
    `overwrite`. Each record says what it was made with, and answers that were made with anything
    else are refused.
    """

    is_resumable = True

    def __init__(
        self,
        path: Path,
        lines: Sequence[Line],
        as_finished: bool,
        overwrite: bool = False,
        made_with: Mapping[str, str] | None = None,
    ) -> None:
        self._path, self._as_finished = path, as_finished
        self._made_with = dict(made_with or {})
        keys = {} if overwrite else {line.number: line.key for line in lines}
        kept = {} if overwrite else _kept_records(path, keys, self._made_with)
        self.kept = set(kept)
        self._replace(kept.values())
        self._file = path.open("a", **_ENCODING)

    def add(self, record: Record) -> None:
        try:
            self._file.write(_text({**record, **self._made_with}))
            self._file.flush()
        except OSError as error:
            raise write_error(self._path, error) from error

    def finish(self) -> None:
        self._file.close()
        if not self._as_finished:
            # Not `splitlines`: a text may contain other line separators.
            *lines, _ = self._path.read_text("utf-8").split("\n")
            records = map(json.loads, lines)
            self._replace(_text(one) for one in sorted(records, key=lambda one: one["line"]))

    def _replace(self, texts: Iterable[str]) -> None:
        """Replace the content by a complete one."""
        with files.open_output(self._path) as file:
            file.writelines(text.encode(**_ENCODING) for text in texts)


class Stream:
    """Writes records in the order of the lines, or as they arrive: to stdout, a pipe, a device."""

    is_resumable = False

    def __init__(
        self, write_text: Callable[[str], object], lines: Sequence[Line], as_finished: bool
    ) -> None:
        self.kept: set[int] = set()
        self._write = write_text
        self._missing = [] if as_finished else [line.number for line in reversed(lines)]
        self._waiting: dict[int, Record] = {}

    def add(self, record: Record) -> None:
        if not self._missing:
            self._write(_text(record))
            return
        self._waiting[record["line"]] = record
        while self._missing and self._missing[-1] in self._waiting:
            self._write(_text(self._waiting.pop(self._missing.pop())))

    def finish(self) -> None:
        return


@contextmanager
def open_output(
    path: Path | None,
    lines: Sequence[Line],
    *,
    as_finished: bool,
    overwrite: bool,
    made_with: Mapping[str, str] | None = None,
) -> Iterator[Output]:
    """Yield the output at a path, or stdout; raises `UsageError` if it has other answers.

    `made_with` are fields of the records of a file, which names the model and the options.
    """
    if path is None or files.is_stdout(path):
        yield Stream(write, lines, as_finished)
        return

    def is_locked() -> None:
        raise UsageError(f"another swiftchat batch writes {path}", "choose another file with -o")

    try:
        if files.is_stream(path):
            with path.open("a", buffering=1, **_ENCODING) as stream:
                yield Stream(stream.write, lines, as_finished)
            return
        target = Path(os.path.realpath(path))
        with exclusive_lock(target, is_locked):
            yield AnswerFile(target, lines, as_finished, overwrite, made_with)
    except OSError as error:
        raise write_error(path, error) from error


def _kept_records(path: Path, keys: dict[int, str], made_with: Mapping[str, str]) -> dict[int, str]:
    """Return the lines of the file that hold an answer, by the number of the input's line.

    A killed program may leave half a line at the end, which is left out. Raises `UsageError` if
    the file has anything else than answers to these lines that were made with the same.
    """
    if not path.exists():
        return {}
    kept: dict[int, str] = {}
    *texts, _ = path.read_bytes().decode("utf-8", "replace").split("\n")
    for number, text in enumerate(texts, 1):
        try:
            record = json.loads(text)
            line, is_answer = record["line"], record.get("error") is None
            is_same = type(line) is int and line in keys and keys[line] == record["key"]
        except (ValueError, TypeError, KeyError, RecursionError):
            is_same = False
        if not is_same:
            raise UsageError(
                f"line {number} of {path} is not an answer to a line of this input",
                "choose another file with -o, or --overwrite",
            )
        for name, value in made_with.items():
            if is_answer and record.get(name, value) != value:  # older versions did not say
                raise UsageError(
                    f"line {number} of {path} was made with other {name}: {shown(record[name])}",
                    "choose another file with -o, or --overwrite",
                )
        if is_answer:
            kept[line] = f"{text}\n"
    return kept


def _text(record: Record) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"
