"""`gguf.json`: the GGUF file that holds the weights of a model directory."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from swiftchat.errors import BadModelFile
from swiftchat.weights.files.reading import encode_json, read_json

SOURCE_FILE = "gguf.json"
# To be raised whenever other small files are made from the same GGUF file.
_VERSION = 2


@dataclass(frozen=True)
class GgufSource:
    """The files of a GGUF model with size and time of change, in nanoseconds since 1970.

    A file inside the model directory belongs to it: its state is (0, 0) and is not compared.
    `notes` say what the model's user should know about its files.
    """

    files: Sequence[Path]
    states: Sequence[tuple[int, int]]
    version: int = _VERSION
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, files: Sequence[Path], directory: Path, notes: Sequence[str] = ()) -> Self:
        """Return the present state of `files` for the small files in `directory`."""
        inside = [file.parent == directory for file in files]
        return cls(
            [Path(file.name) if own else file for file, own in zip(files, inside, strict=True)],
            [(0, 0) if own else _state(file) for file, own in zip(files, inside, strict=True)],
            notes=tuple(notes),
        )

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """Read it from a model directory, with absolute paths; None: it has none.

        Raises `BadModelFile` for a damaged file.
        """
        path = directory / SOURCE_FILE
        if not path.is_file():
            return None
        content = read_json(path)
        files = content.get("files")
        rows: list[Any] = files if isinstance(files, list) else []
        if not rows or not all(map(_is_row, rows)):
            raise BadModelFile(f"{path}: expected a list of files with sizes and times")
        return cls(
            [directory / row["path"] for row in rows],
            [(row["bytes"], row["modified_ns"]) for row in rows],
            content.get("version", 0),
            tuple(map(str, content.get("notes") or ())),
        )

    def encode(self) -> bytes:
        """Return the content of `gguf.json`."""
        rows = [
            {"path": str(file), "bytes": nbytes, "modified_ns": modified_ns}
            for file, (nbytes, modified_ns) in zip(self.files, self.states, strict=True)
        ]
        return encode_json({"version": self.version, "notes": [*self.notes], "files": rows})

    @property
    def is_current(self) -> bool:
        """Whether the small files were made from the files as they are now, by this version."""
        return self.version == _VERSION and self.changed_file is None

    @property
    def changed_file(self) -> Path | None:
        """A file that is missing, or that has changed since the small files were made."""
        for file, state in zip(self.files, self.states, strict=True):
            if not file.is_file() or state not in ((0, 0), _state(file)):
                return file
        return None


def gguf_file_of(directory: Path) -> Path | None:
    """Return the GGUF file with the weights of a model directory, the first of a split model.

    None: the directory has weight files of its own. Raises `BadModelFile` if the file is missing
    or was changed after the directory was made.
    """
    source = GgufSource.read(directory)
    if source is None:
        return None
    if (file := source.changed_file) is not None:
        problem = "has changed since the model was opened" if file.exists() else "is missing"
        raise BadModelFile(f"{file} {problem}", "open the model again")
    return source.files[0]


def _state(file: Path) -> tuple[int, int]:
    state = os.stat(file)  # noqa: PTH116 - follows links, as open does
    return state.st_size, state.st_mtime_ns


def _is_row(row: object) -> bool:
    return (
        isinstance(row, dict)
        and isinstance(row.get("path"), str)
        and all(type(row.get(key)) is int for key in ("bytes", "modified_ns"))
    )
