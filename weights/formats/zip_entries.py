"""Where the files inside an uncompressed zip archive lie, so that they can be mapped.

The records are those of the format's published description (APPNOTE), with its 64-bit forms.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from swiftchat.errors import BadModelFile

__all__ = ["Entry", "zip_entries"]

_MAX_DIRECTORY_BYTES = 32 * 1024 * 1024
_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5HL2L2H")
_ABSENT = 0xFFFFFFFF


@dataclass(frozen=True)
class Entry:
    """A file in the archive: its bytes are `nbytes` from `offset` of the archive."""

    name: str
    offset: int
    nbytes: int


def zip_entries(path: Path) -> dict[str, Entry]:
    """The files in `path` by name.

    Raises `BadModelFile` when the archive is truncated or damaged, or when a file in it is
    compressed, encrypted, outside the archive or there twice.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        begin, length, count = _directory(path, file, size)
        if length > _MAX_DIRECTORY_BYTES or begin + length > size:
            raise BadModelFile(f"{path}: a zip directory of {length} bytes: damaged?")
        file.seek(begin)
        directory = file.read(length)
        entries: dict[str, Entry] = {}
        at = 0
        for _ in range(count):
            try:
                entry, at = _entry(path, file, directory, at, size)
            except struct.error as error:
                raise BadModelFile(f"{path}: the zip directory ends early: truncated?") from error
            if entry.name in entries:
                raise BadModelFile(f"{path}: {entry.name} is in the archive twice")
            entries[entry.name] = entry
    return entries


def _directory(path: Path, file: BinaryIO, size: int) -> tuple[int, int, int]:
    """Begin and length of the central directory, and its number of entries."""
    tail_bytes = min(size, _END.size + _LOCATOR.size)
    file.seek(size - tail_bytes)
    tail = file.read(tail_bytes)
    if tail[-_END.size :][:4] != b"PK\5\6":
        raise BadModelFile(f"{path}: the zip archive has no end: truncated?")
    *_, count, length, begin, _ = _END.unpack(tail[-_END.size :])
    if tail_bytes == _END.size + _LOCATOR.size and tail[:4] == b"PK\6\7":
        _, _, at, _ = _LOCATOR.unpack(tail[: _LOCATOR.size])
        if at > size - _END64.size:
            raise BadModelFile(f"{path}: the zip directory lies outside the file: truncated?")
        file.seek(at)
        record = _END64.unpack(file.read(_END64.size))
        if record[0] != b"PK\6\6":
            raise BadModelFile(f"{path}: the zip archive has no 64-bit end: damaged?")
        count, length, begin = record[-3:]
    # Each entry takes room, so a count beyond the directory ends at its end.
    return begin, length, count


def _entry(path: Path, file: BinaryIO, directory: bytes, at: int, size: int) -> tuple[Entry, int]:
    (
        signature,
        _,
        _,
        flags,
        method,
        _,
        _,
        _,
        packed,
        nbytes,
        name_length,
        extra_length,
        comment_length,
        _,
        _,
        _,
        local,
    ) = _CENTRAL.unpack_from(directory, at)
    at += _CENTRAL.size
    name = directory[at : at + name_length].decode(errors="replace")
    extra = directory[at + name_length : at + name_length + extra_length]
    at += name_length + extra_length + comment_length
    if signature != b"PK\1\2" or at > len(directory):
        raise BadModelFile(f"{path}: the zip directory is damaged")
    if method or flags & 1:
        raise BadModelFile(f"{path}: {name} is compressed or encrypted, which no checkpoint is")
    nbytes, packed, local = _long_forms(extra, nbytes, packed, local)
    if packed != nbytes or local > size - _LOCAL.size:
        raise BadModelFile(f"{path}: {name} lies outside the archive: truncated?")
    file.seek(local)
    head = _LOCAL.unpack(file.read(_LOCAL.size))
    offset = local + _LOCAL.size + head[-2] + head[-1]
    if head[0] != b"PK\3\4" or offset + nbytes > size:
        raise BadModelFile(f"{path}: {name} ends at byte {offset + nbytes} of {size}: truncated?")
    return Entry(name, offset, nbytes), at


def _long_forms(extra: bytes, *values: int) -> list[int]:
    """The 64-bit values for those that did not fit into 32 bits, in their order."""
    found = list(values)
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            field = at + 4
            for number, value in enumerate(values):
                if value == _ABSENT:
                    (found[number],) = struct.unpack_from("<Q", extra, field)
                    field += 8
        at += 4 + length
    return found
