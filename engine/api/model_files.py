"""The text files of a model, which a terminal fetches from a remote engine: all but the weights."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from swiftchat.errors import BadModelFile
from swiftchat.errors.regular_file import open_regular
from swiftchat.weights.files.paths import is_inside
from swiftchat.weights.gguf.source import SOURCE_FILE

MAX_FILE_BYTES = 1 << 28
PIECE_BYTES = 1 << 20  # sent in one message
_MAX_FILES = 200
_MAX_TOTAL_BYTES = 1 << 29
_SUFFIXES = (".json", ".jinja", ".model", ".tiktoken", ".txt", ".py")
_NAME = re.compile(r"(additional_chat_templates/)?[A-Za-z0-9_][A-Za-z0-9_.+-]{0,120}")


@dataclass(frozen=True)
class TextFile:
    """The name of a file in the model's directory, its size, and the SHA-256 of its content."""

    name: str
    size_bytes: int
    sha256: str

    def to_wire(self) -> list[Any]:
        return [self.name, self.size_bytes, self.sha256]

    @classmethod
    def from_wire(cls, wire: Any) -> Self:
        """Decode a received file entry.

        Raises `BadModelFile` for a name, size or digest that is not safe to write to disk.
        """
        match wire:
            case [str() as name, int() as size_bytes, str() as sha256]:
                if (
                    _is_text_name(name)
                    and 0 <= size_bytes <= MAX_FILE_BYTES
                    and re.fullmatch(r"\w{64}", sha256)
                ):
                    return cls(name, size_bytes, sha256)
        raise BadModelFile(f"the engine offers an invalid model file: {wire!r:.80}")


def files_from_wire(wires: list[Any]) -> list[TextFile]:
    """Decode the list of a model's files. Raises `BadModelFile` for one that is too long."""
    if len(wires) > _MAX_FILES:
        raise BadModelFile(f"the engine offers {len(wires)} model files, more than {_MAX_FILES}")
    files = [TextFile.from_wire(wire) for wire in wires]
    if (total := sum(file.size_bytes for file in files)) > _MAX_TOTAL_BYTES:
        raise BadModelFile(
            f"the engine offers model files of {total} bytes, more than {_MAX_TOTAL_BYTES}"
        )
    return files


def text_files(directory: Path) -> list[TextFile]:
    """List the text files of a model directory, sorted by name, but links that leave it."""
    paths = [*directory.glob("*"), *directory.glob("additional_chat_templates/*.jinja")]
    found = []
    for name in sorted(path.relative_to(directory).as_posix() for path in paths):
        if _is_text_name(name) and _is_text(directory, name):
            with open_regular(directory / name) as file:
                content = file.read(MAX_FILE_BYTES)
            found.append(TextFile(name, len(content), hashlib.sha256(content).hexdigest()))
    return found[:_MAX_FILES]


def digest(files: list[TextFile]) -> str:
    """Return the SHA-256 of all names, sizes and content digests, in hexadecimal."""
    return hashlib.sha256(repr([file.to_wire() for file in files]).encode()).hexdigest()


def _is_text(directory: Path, name: str) -> bool:
    path = directory / name
    if name.endswith(".index.json") or not (path.is_file() and is_inside(directory, path)):
        return False
    return path.stat().st_size <= MAX_FILE_BYTES


def _is_text_name(name: str) -> bool:
    # The place of a GGUF file is of no use on another machine.
    is_safe = _NAME.fullmatch(name) is not None and name != SOURCE_FILE
    return is_safe and Path(name).suffix in _SUFFIXES


def read_piece(directory: Path, name: str, start: int) -> bytes:
    """Read up to `PIECE_BYTES` of a file from byte `start` on.

    Raises `BadModelFile` if it has become a link out of the folder, or is not regular.
    """
    if not is_inside(directory, directory / name):
        raise BadModelFile(f"{name} is a link to a file outside the model's directory")
    with open_regular(directory / name) as file:
        file.seek(start)
        return file.read(PIECE_BYTES)
