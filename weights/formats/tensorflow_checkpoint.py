"""TensorFlow checkpoints: `PREFIX.index` and `PREFIX.data-NNNNN-of-NNNNN`.

The index is a sorted table. Its empty key has a message with the number of data files; every
other key is a tensor's name, its value a message with dtype, shape, data file, offset and size.
Messages are protocol buffers (see TensorFlow's tensor_bundle.proto).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from swiftchat.errors import BadModelFile, DamagedModelFile, FileSystemError
from swiftchat.weights.formats.sorted_table import read_table, varint
from swiftchat.weights.formats.tensor_info import ITEM_BYTES, TensorInfo, reject_overlaps

_DTYPES: Mapping[int, str] = {
    1: "F32",
    2: "F64",
    3: "I32",
    4: "U8",
    5: "I16",
    6: "I8",
    9: "I64",
    10: "BOOL",
    14: "BF16",
    19: "F16",
}
_MAX_FILES = 1000
_MAX_DIMENSIONS = 8

Message = Mapping[int, list[int | bytes]]
"""A protobuf message: the values of each field in order."""


def read_tensorflow_checkpoint(index: Path) -> dict[str, TensorInfo]:
    """Return the tensors of the checkpoint with the index file `index` by name, without strings.

    Raises `BadModelFile` with the file and the tensor if the table is damaged, a data file is
    missing or too short, or tensors overlap; `FileSystemError` if a file cannot be read.
    """
    try:
        table = read_table(index)
        header = _message(index, "its header", table.pop(b"", b""))
        if _number(header, 2):
            raise BadModelFile(f"{index}: written on a big-endian machine")
        num_files = _number(header, 1)
        if not 1 <= num_files <= _MAX_FILES:
            raise DamagedModelFile(f"{index}: {num_files} data files: damaged?")
        files = [_data_file(index, number, num_files) for number in range(num_files)]
    except OSError as error:
        raise FileSystemError.reading(index, error) from error
    tensors: dict[str, TensorInfo] = {}
    in_file: dict[Path, dict[str, TensorInfo]] = {}
    for key, value in table.items():
        name = key.decode(errors="replace")
        info = _tensor(index, name, _message(index, f"tensor {name[:80]}", value), files)
        if info is not None:
            tensors[name] = info
            in_file.setdefault(info.file, {})[name] = info
    for file, stored in in_file.items():
        reject_overlaps(file, stored.values(), allow_same=True)
    return tensors


def _data_file(index: Path, number: int, num_files: int) -> tuple[Path, int]:
    """Return the path of a data file and its size in bytes."""
    file = index.with_name(f"{index.stem}.data-{number:05}-of-{num_files:05}")
    if not file.is_file():
        raise DamagedModelFile(f"{file} is missing")
    return file, file.stat().st_size


def _tensor(
    index: Path, name: str, entry: Message, files: Sequence[tuple[Path, int]]
) -> TensorInfo | None:
    dtype = _DTYPES.get(_number(entry, 1))
    if dtype is None:
        return None
    dimensions = [
        _number(_message(index, f"tensor {name[:80]}", dimension), 1)
        for shape in entry.get(2, [])
        for dimension in _message(index, f"tensor {name[:80]}", shape).get(2, [])
    ]
    number, offset, nbytes = (_number(entry, field) for field in (3, 4, 5))
    if len(dimensions) > _MAX_DIMENSIONS or max(dimensions, default=0) >= 2**63 or 7 in entry:
        raise BadModelFile(f"{index}: tensor {name[:80]}: an impossible shape, or stored in slices")
    expected = math.prod(dimensions) * ITEM_BYTES[dtype]
    if nbytes != expected:
        raise BadModelFile(
            f"{index}: tensor {name[:80]}: expected {expected} bytes of {dtype}, found {nbytes}"
        )
    if number >= len(files):
        raise BadModelFile(f"{index}: tensor {name[:80]}: in data file {number} of {len(files)}")
    file, size = files[number]
    if offset + nbytes > size:
        raise DamagedModelFile(
            f"{file}: tensor {name[:80]} ends at byte {offset + nbytes} of {size}: truncated?"
        )
    return TensorInfo(name, file, dtype, tuple(dimensions), offset, nbytes)


def _message(index: Path, where: str, content: int | bytes) -> Message:
    fields: dict[int, list[int | bytes]] = {}
    try:
        for field, value in _fields(content if isinstance(content, bytes) else b"\xff"):
            fields.setdefault(field, []).append(value)
    except IndexError as error:
        raise DamagedModelFile(f"{index}: {where}: a damaged message") from error
    return fields


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field; IndexError for an invalid field."""
    at = 0
    while at < len(content):
        tag, at = varint(content, at)
        kind = tag & 7
        if kind == 0:
            number, at = varint(content, at)
            yield tag >> 3, number
            continue
        nbytes = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            nbytes, at = varint(content, at)
        if nbytes is None or at + nbytes > len(content):
            raise IndexError
        yield tag >> 3, content[at : at + nbytes]
        at += nbytes


def _number(message: Message, field: int) -> int:
    """Return the last value of the field, as protobuf defines it; 0 if absent."""
    value = message.get(field, [0])[-1]
    return value if isinstance(value, int) else 2**64
