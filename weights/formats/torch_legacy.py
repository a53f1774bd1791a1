"""Files that torch.save wrote before version 1.6: pickles in a row, then the numbers.

The pickles are a magic number, a version, facts of the machine, what was saved, and the keys of
its storages. For each key follow an int64, how many numbers it has, and the numbers. (Facts from
`torch.serialization`.)
"""

import io
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from swiftchat.errors import BadModelFile
from swiftchat.weights.formats.safe_pickle import MAX_BYTES, Global, load
from swiftchat.weights.formats.zip_entries import Entry

__all__ = ["row_entries"]

_MAGIC = 0x1950A86A20F9469CFC6C
_VERSION = 1001


def row_entries(
    path: Path, file: BinaryIO, knows: Callable[[str], bool], item_bytes: Mapping[str, int]
) -> tuple[bytes, dict[str, Entry]]:
    """The pickle of what was saved, and where each storage lies by its key.

    `knows` is as for `inert_pickle.load`; `item_bytes` are the kinds of storages with the bytes
    of one number. Raises `BadModelFile` when the file is something else, was written by a
    big-endian machine, is cut off, has more than 16 MiB of pickles, or when a storage is named
    twice or not at all.
    """
    file.seek(0)
    row = io.BytesIO(file.read(MAX_BYTES))
    found: dict[str, tuple[str, int]] = {}

    def storage(identity: Any) -> None:
        if not isinstance(identity, tuple) or len(identity) < 5:
            raise BadModelFile(f"{path}: a storage of an unknown kind")
        _, kind, key, _, count = identity[:5]
        if isinstance(kind, Global) and isinstance(key, str) and isinstance(count, int):
            found[key] = (kind.name, count)

    def read() -> Any:
        # Nothing is made of what was saved yet: where its numbers are is told after it.
        return load(row, str(path), knows, lambda name, arguments: {}, storage)

    if read() != _MAGIC:
        raise BadModelFile(
            f"{path}: a pickle, but not of torch.save", "use a safetensors version of the model"
        )
    if read() != _VERSION:
        raise BadModelFile(f"{path}: expected version {_VERSION} of torch.save's older format")
    machine = read()
    if not isinstance(machine, dict) or machine.get("little_endian") is not True:
        raise BadModelFile(f"{path}: written on a big-endian machine")
    begin = row.tell()
    read()
    pickled = row.getvalue()[begin : row.tell()]
    keys = read()
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise BadModelFile(f"{path}: expected the keys of its storages after what was saved")
    return pickled, _storages(path, file, row.tell(), keys, found, item_bytes)


def _storages(
    path: Path,
    file: BinaryIO,
    at: int,
    keys: list[str],
    found: Mapping[str, tuple[str, int]],
    item_bytes: Mapping[str, int],
) -> dict[str, Entry]:
    size = file.seek(0, io.SEEK_END)
    entries: dict[str, Entry] = {}
    for key in keys:
        kind, count = found.get(key, ("", 0))
        if kind not in item_bytes or key in entries:
            raise BadModelFile(
                f"{path}: storage {key[:40]} belongs to no tensor, or is there twice"
            )
        file.seek(at)
        announced = file.read(8)
        if len(announced) < 8 or struct.unpack("<q", announced)[0] != count:
            raise BadModelFile(f"{path}: storage {key[:40]}: expected {count} numbers: truncated?")
        nbytes = count * item_bytes[kind]
        if not 0 <= nbytes <= size - at - 8:
            raise BadModelFile(
                f"{path}: storage {key[:40]} ends at byte {at + 8 + nbytes} of {size}: truncated?"
            )
        entries[key] = Entry(key, at + 8, nbytes)
        at += 8 + nbytes
    return entries
