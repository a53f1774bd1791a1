"""The containers of `torch.save`: positions of the pickle and the storages in the file.

Since torch 1.6 a file is an uncompressed zip archive with the pickle `data.pkl` and a member
`data/KEY` for each storage. Older files are a sequence of pickles (magic number, version, machine
properties, the saved object, the keys of its storages) followed by each storage: its number of
elements as int64, then the elements. Source: `torch.serialization`.
"""

import io
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from swiftchat.errors import BadModelFile, DamagedModelFile, FileSystemError
from swiftchat.errors.regular_file import open_regular
from swiftchat.weights.files.reading import reject_other_content
from swiftchat.weights.formats.safe_pickle import MAX_BYTES, OTHER_FORMAT_HINT, GlobalName, load

# A pickle of `safe_pickle.MAX_BYTES` refers to fewer storages than such a directory can have.
_MAX_DIRECTORY_BYTES = 16 * 1024 * 1024
_LOCAL_HEADER = struct.Struct("<4s22x2H")
_DIRECTORY = 0x10  # an attribute of MS-DOS; torch reads no content behind it
_MAGIC = 0x1950A86A20F9469CFC6C
_VERSION = 1001


@dataclass(frozen=True)
class FileSpan:
    """`nbytes` bytes of a file from `offset` on."""

    offset: int
    nbytes: int


def read_container(
    path: Path, is_known: Callable[[str], bool], item_bytes: Mapping[str, int]
) -> tuple[bytes, dict[str, FileSpan]]:
    """Return the pickle of the saved object, and the storages by key.

    `is_known` is the argument of `safe_pickle.load`; `item_bytes` has the element size of every
    supported storage class. Raises `BadModelFile` if the file has another format, is damaged,
    truncated or big-endian, `FileSystemError` if it cannot be read.
    """
    try:
        with open_regular(path) as file:
            start = file.read(512)
            reject_other_content(path, start)
            if start.startswith(b"PK\3\4"):
                return _read_zip(path, file)
            if start.startswith(b"\x80"):
                return _read_legacy(path, file, is_known, item_bytes)
    except OSError as error:
        raise FileSystemError.reading(path, error) from error
    problem = "not a file of torch.save"
    if start[257:262] == b"ustar":
        problem = "a tar archive, the first format of torch.save, which is not supported"
    raise BadModelFile(f"{path}: {problem}", OTHER_FORMAT_HINT)


def _read_zip(path: Path, file: BinaryIO) -> tuple[bytes, dict[str, FileSpan]]:
    members = zip_members(path)
    folder = _archive_folder(path, members)
    order = members.get(f"{folder}byteorder")
    if order is not None and _read_span(file, order, 16).strip() != b"little":
        raise BadModelFile(f"{path}: written on a big-endian machine")
    # One byte more than `load` accepts, so that it rejects a longer pickle.
    pickled = _read_span(file, members[f"{folder}data.pkl"], 1 + MAX_BYTES)
    data = f"{folder}data/"
    storages = {name.removeprefix(data): m for name, m in members.items() if name.startswith(data)}
    return pickled, storages


def _archive_folder(path: Path, members: Mapping[str, FileSpan]) -> str:
    """Return the folder of all members, such as "archive/"."""
    found = [name for name in members if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(found) != 1:
        raise BadModelFile(f"{path}: a zip archive, but not one of torch.save")
    return found[0].removesuffix("data.pkl")


def _read_span(file: BinaryIO, span: FileSpan, most: int) -> bytes:
    file.seek(span.offset)
    return file.read(min(span.nbytes, most))


class _BoundedFile(io.BufferedReader):
    """A file whose reads, and so the directory that `zipfile` reads at once, are bounded."""

    def read(self, size: int | None = -1, /) -> bytes:
        limit = _MAX_DIRECTORY_BYTES + 1
        content = super().read(limit if size is None or size < 0 else min(size, limit))
        if len(content) == limit:
            raise zipfile.BadZipFile(f"a directory of more than {_MAX_DIRECTORY_BYTES} bytes")
        return content


def zip_members(path: Path) -> dict[str, FileSpan]:
    """Return the place of every member of an uncompressed zip archive by name.

    Raises `BadModelFile` if the archive is truncated or damaged, or if a member is compressed,
    encrypted, outside the file or has a name that occurs twice.
    """
    size = path.stat().st_size
    members: dict[str, FileSpan] = {}
    with _BoundedFile(io.FileIO(path)) as file:
        try:
            infos = zipfile.ZipFile(file).infolist()
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
            raise DamagedModelFile(
                f"{path}: a damaged zip archive, truncated? ({error})"
            ) from error
        for info in infos:
            name = info.filename
            if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
                raise BadModelFile(f"{path}: {name[:200]} is compressed or encrypted")
            if info.external_attr & _DIRECTORY and info.file_size:
                raise BadModelFile(f"{path}: {name[:200]} is a folder with content")
            if name in members:
                raise BadModelFile(f"{path}: {name[:200]} is in the archive twice")
            members[name] = _member(path, file, info, size)
    return members


def _member(path: Path, file: BinaryIO, info: zipfile.ZipInfo, size: int) -> FileSpan:
    where = f"{path}: {info.filename[:200]}"
    if info.compress_size != info.file_size or not (
        0 <= info.header_offset <= size - _LOCAL_HEADER.size
    ):
        raise DamagedModelFile(f"{where} lies outside the archive: truncated?")
    file.seek(info.header_offset)
    # The lengths of name and extra field can differ from those in the directory.
    signature, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    offset = info.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes
    if signature != b"PK\3\4" or offset + info.file_size > size:
        raise DamagedModelFile(
            f"{where} ends at byte {offset + info.file_size} of {size}: truncated?"
        )
    return FileSpan(offset, info.file_size)


def _read_legacy(
    path: Path, file: BinaryIO, is_known: Callable[[str], bool], item_bytes: Mapping[str, int]
) -> tuple[bytes, dict[str, FileSpan]]:
    file.seek(0)
    pickles = io.BytesIO(file.read(MAX_BYTES))
    found: dict[str, tuple[str, int]] = {}

    def add_storage(identity: Any) -> None:
        if not isinstance(identity, tuple) or len(identity) < 5:
            raise BadModelFile(f"{path}: a storage of an unknown kind")
        _, kind, key, _, count = identity[:5]
        if isinstance(kind, GlobalName) and isinstance(key, str) and isinstance(count, int):
            found[key] = (kind.name, count)

    def next_pickle() -> Any:
        # Tensors are made in a second pass: the places of the storages follow the saved object.
        return load(pickles, str(path), is_known, lambda name, arguments: {}, add_storage)

    if next_pickle() != _MAGIC:
        raise BadModelFile(f"{path}: a pickle, but not of torch.save", OTHER_FORMAT_HINT)
    if next_pickle() != _VERSION:
        raise BadModelFile(f"{path}: expected version {_VERSION} of torch.save's older format")
    machine = next_pickle()
    if not isinstance(machine, dict) or machine.get("little_endian") is not True:
        raise BadModelFile(f"{path}: written on a big-endian machine")
    begin = pickles.tell()
    next_pickle()
    pickled = pickles.getvalue()[begin : pickles.tell()]
    keys = next_pickle()
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise BadModelFile(f"{path}: expected the keys of the storages after the saved object")
    return pickled, _legacy_storages(path, file, pickles.tell(), keys, found, item_bytes)


def _legacy_storages(
    path: Path,
    file: BinaryIO,
    at: int,
    keys: list[str],
    found: Mapping[str, tuple[str, int]],
    item_bytes: Mapping[str, int],
) -> dict[str, FileSpan]:
    size = file.seek(0, io.SEEK_END)
    spans: dict[str, FileSpan] = {}
    for key in keys:
        where = f"{path}: storage {key[:40]}"
        kind, count = found.get(key, ("", 0))
        if kind not in item_bytes or key in spans:
            raise BadModelFile(f"{where} belongs to no tensor, or is stored twice")
        file.seek(at)
        stored = file.read(8)
        if len(stored) < 8 or struct.unpack("<q", stored)[0] != count:
            raise DamagedModelFile(f"{where}: expected {count} elements: truncated?")
        nbytes = count * item_bytes[kind]
        if not 0 <= nbytes <= size - at - 8:
            raise DamagedModelFile(f"{where} ends at byte {at + 8 + nbytes} of {size}: truncated?")
        spans[key] = FileSpan(at + 8, nbytes)
        at += 8 + nbytes
    return spans
