"""A model's files without its weights: what a terminal needs that has no such model. No torch."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from swiftchat.errors import BadModelFile

_SUFFIXES = (".json", ".jinja", ".model", ".tiktoken", ".txt", ".py")
# Of one file, of their number, and of a piece that is sent in one message.
MOST_BYTES, _MOST_FILES, PIECE_BYTES = 1 << 28, 200, 1 << 20
_NAME = re.compile(r"(additional_chat_templates/)?[A-Za-z0-9_][A-Za-z0-9_.+-]{0,120}")


@dataclass(frozen=True)
class TextFile:
    """One of them: its name in the model's directory, its size, its content's SHA-256."""

    name: str
    size_bytes: int
    sha256: str

    def to_wire(self) -> list[Any]:
        return [self.name, self.size_bytes, self.sha256]

    @classmethod
    def from_wire(cls, wire: Any) -> Self:
        """Raises `BadModelFile` for what no terminal would write into a folder of its own."""
        match wire:
            case [str() as name, int() as size_bytes, str() as sha256]:
                is_right = _NAME.fullmatch(name) and Path(name).suffix in _SUFFIXES
                if is_right and 0 <= size_bytes <= MOST_BYTES and re.fullmatch(r"\w{64}", sha256):
                    return cls(name, size_bytes, sha256)
        raise BadModelFile(f"the engine offers a file that is none of a model's: {wire!r:.80}")


def text_files(directory: Path) -> list[TextFile]:
    """The files of a model that a terminal needs, in the order of their names."""
    found = [*directory.glob("*"), *directory.glob("additional_chat_templates/*.jinja")]
    return [
        TextFile(name, len(content), hashlib.sha256(content).hexdigest())
        for name, path in sorted((path.relative_to(directory).as_posix(), path) for path in found)
        if _NAME.fullmatch(name) and _is_text(path)
        for content in [path.read_bytes()]
    ][:_MOST_FILES]


def digest(files: list[TextFile]) -> str:
    """What names these files, with their names, in hexadecimal digits."""
    return hashlib.sha256(repr([file.to_wire() for file in files]).encode()).hexdigest()


def _is_text(path: Path) -> bool:
    if path.suffix not in _SUFFIXES or path.name.endswith(".index.json") or not path.is_file():
        return False
    return path.stat().st_size <= MOST_BYTES


def piece(directory: Path, name: str, start: int) -> bytes:
    with (directory / name).open("rb") as file:
        file.seek(start)
        return file.read(PIECE_BYTES)
