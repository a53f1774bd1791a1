"""The safetensors format: headers read with bounds checks, files written as a stream.

A file is an unsigned 64-bit little-endian header length, a JSON object with dtype, shape and byte
range of every tensor, and the data (see the format's description). What is written here is opened
with the safetensors library before it counts as written.
"""

import functools
import hashlib
import json
import math
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from swiftchat.errors import DamagedModelFile, FileSystemError
from swiftchat.errors.regular_file import open_regular
from swiftchat.weights.files.reading import parse_json, reject_other_content
from swiftchat.weights.formats.tensor_info import ITEM_BYTES, TensorInfo, reject_overlaps

# Parsed JSON takes up to 20 times the size of its text; the largest published headers have 10 MB.
_MAX_HEADER_BYTES = 16 * 1024 * 1024
_MAX_DIMENSIONS = 8
_DTYPE = re.compile(r"[A-Z][A-Z0-9_]{0,15}")
_ALIGNMENT_BYTES = 64
_PART_BYTES = 1 << 22

TensorSpec = tuple[str, str, tuple[int, ...]]
"""Name, dtype and shape of a tensor that is to be written."""


def read_header(path: Path) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """Return the tensors by name and the metadata of one file; reads the header only.

    Raises `BadModelFile` with the file (and tensor) for an invalid length, dtype, shape or byte
    range, for tensors that overlap, and for a file of another type.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(512)
        reject_other_content(path, start)
        if len(start) < 8:
            raise _bad(path, f"only {len(start)} bytes long")
        (length,) = struct.unpack("<Q", start[:8])
        if length > size - 8:
            raise _bad(path, f"has {size} bytes, but its header should have {length}: truncated?")
        if length > _MAX_HEADER_BYTES:
            raise _bad(path, f"header of {length} bytes, more than {_MAX_HEADER_BYTES}")
        file.seek(8)
        header = _parse(path, file.read(length))
    metadata = _metadata(path, header.pop("__metadata__", None))
    tensors = {name: _tensor(path, name, entry, 8 + length, size) for name, entry in header.items()}
    reject_overlaps(path, tensors.values())
    return tensors, metadata


def _bad(path: Path, problem: str) -> DamagedModelFile:
    return DamagedModelFile(f"{path}: {problem}")


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise _bad(path, "a name occurs twice in the header")
        return found

    try:
        header = parse_json(text, no_duplicates)
    except (ValueError, RecursionError) as error:
        raise _bad(path, "the header is not JSON; not a safetensors file?") from error
    if not isinstance(header, dict):
        raise _bad(path, "the header is not a JSON object")
    return header


def _metadata(path: Path, entry: object) -> dict[str, str]:
    if entry is None:
        return {}
    if not isinstance(entry, dict) or not all(isinstance(v, str) for v in entry.values()):
        raise _bad(path, "__metadata__ is not an object of strings")
    return entry


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _tensor(path: Path, name: str, entry: object, data_start: int, size: int) -> TensorInfo:
    where = f"tensor {name if len(name) <= 200 else name[:199] + '…'}"
    if not isinstance(entry, dict):
        raise _bad(path, f"{where}: not an object")
    dtype, shape, span = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or not _DTYPE.fullmatch(dtype):
        raise _bad(path, f"{where}: {str(dtype)[:40]!r} is no dtype")
    if (
        not isinstance(shape, list)
        or len(shape) > _MAX_DIMENSIONS
        or not all(map(_is_count, shape))
    ):
        raise _bad(path, f"{where}: the shape is not a list of at most {_MAX_DIMENSIONS} sizes")
    if not isinstance(span, list) or len(span) != 2 or not all(map(_is_count, span)):
        raise _bad(path, f"{where}: data_offsets is not a pair of offsets")
    begin, end = span
    # A tensor of a dtype that is not known may be one that the model does not use.
    nbytes = math.prod(shape) * ITEM_BYTES[dtype] if dtype in ITEM_BYTES else max(0, end - begin)
    if end - begin != nbytes:
        raise _bad(path, f"{where}: {dtype} {shape} needs {nbytes} bytes, has {end - begin}")
    if data_start + end > size:
        raise _bad(path, f"{where}: ends at byte {data_start + end} of {size}: truncated?")
    return TensorInfo(name, path, dtype, tuple(shape), data_start + begin, nbytes)


def header_bytes(tensors: Sequence[TensorSpec], metadata: Mapping[str, str]) -> bytes:
    """Return length and header for `tensors` in the order of their data.

    Spaces at the end of the header align the data to 64 bytes.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for tensor in tensors:
        name, dtype, shape = tensor
        end = offset + spec_bytes(tensor)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT_BYTES)
    return struct.pack("<Q", len(text)) + text


def spec_bytes(tensor: TensorSpec) -> int:
    """Return the bytes of a tensor's elements."""
    _, dtype, shape = tensor
    return math.prod(shape) * ITEM_BYTES[dtype]


class SafetensorsWriter:
    """Writes tensors at their places in a file, in any order; created by `create_safetensors`.

    `checksums` has the CRC-32 of every tensor that is written.
    """

    def __init__(self, file: BinaryIO, tensors: Sequence[TensorSpec], header: bytes) -> None:
        self._file = file
        self._header = header
        self._places: dict[str, tuple[int, TensorSpec]] = {}
        offset = len(header)
        for tensor in tensors:
            self._places[tensor[0]] = offset, tensor
            offset += spec_bytes(tensor)
        self.checksums: dict[str, int] = {}
        file.write(header)

    def write(self, name: str, array: npt.NDArray[Any]) -> None:
        """Write a tensor; ValueError if name, shape or item size is not that of a spec."""
        offset, (_, dtype, shape) = self._places.get(name, (0, ("", "", ())))
        if not dtype or (array.shape, array.itemsize) != (shape, ITEM_BYTES[dtype]):
            raise ValueError(
                f"expected tensor {name} {dtype} {shape}, got {array.shape} {array.dtype}"
            )
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        self._file.seek(offset)
        self._file.write(data)
        self._file.flush()
        self.checksums[name] = zlib.crc32(data)

    def restore(self, checksums: Mapping[str, int]) -> None:
        """Count those tensors of an earlier writer as written whose bytes in the file match."""
        for name, (offset, tensor) in self._places.items():
            if name in checksums:
                self._file.seek(offset)
                found = _checksum(_parts(self._file, spec_bytes(tensor)))
                if found == checksums[name]:
                    self.checksums[name] = found

    def read_back(self, file: BinaryIO, report: Callable[[int], None]) -> str | None:
        """Return the SHA-256 of the written `file`; None if a byte is not the one written.

        Calls `report` with the bytes that have been read since the last call.
        """
        digest = hashlib.sha256()
        spans = [(len(self._header), zlib.crc32(self._header))]
        spans += [
            (spec_bytes(tensor), self.checksums[name]) for name, (_, tensor) in self._places.items()
        ]
        for nbytes, checksum in spans:
            found = 0
            for part in _parts(file, nbytes):
                digest.update(part)
                found = zlib.crc32(part, found)
                report(len(part))
            if found != checksum:
                return None
        return None if file.read(1) else digest.hexdigest()

    def finish(self) -> None:
        """Flush the file; ValueError if a tensor was not written."""
        num_missing = len(self._places) - len(self.checksums)
        if num_missing:
            raise ValueError(f"{num_missing} tensors were not written")
        self._file.flush()


def _parts(file: BinaryIO, nbytes: int) -> Iterator[bytes]:
    """Yield the next bytes of a file, a part at a time; ends early at its end."""
    while nbytes and (part := file.read(min(nbytes, _PART_BYTES))):
        nbytes -= len(part)
        yield part


def _checksum(parts: Iterable[bytes]) -> int:
    return functools.reduce(lambda checksum, part: zlib.crc32(part, checksum), parts, 0)


@contextmanager
def create_safetensors(
    path: Path,
    tensors: Sequence[TensorSpec],
    metadata: Mapping[str, str],
    earlier: Mapping[str, int] | None = None,
) -> Iterator[SafetensorsWriter]:
    """Create a safetensors file for `tensors`; yields the writer of their data.

    `earlier` are the checksums of an interrupted writer, whose file is continued if there is one.
    Raises `FileSystemError` if the safetensors library then finds another content.
    """
    is_continued = earlier is not None and path.exists()
    with path.open("r+b") if is_continued else path.open("xb") as file:
        writer = SafetensorsWriter(file, tensors, header_bytes(tensors, metadata))
        if is_continued:
            writer.restore(earlier or {})
        yield writer
        writer.finish()
    _prove(path, tensors, metadata)


def _prove(path: Path, tensors: Sequence[TensorSpec], metadata: Mapping[str, str]) -> None:
    """Open a written file with the safetensors library and compare what it finds.

    The library tells no byte ranges, but refuses a file whose tensors do not follow one another
    without a gap to the file's end. So the order, dtypes and shapes prove the ranges too.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            slices = [(name, file.get_slice(name)) for name in file.offset_keys()]
            found = [(name, part.get_dtype(), tuple(part.get_shape())) for name, part in slices]
            found_metadata = file.metadata() or {}
    except SafetensorError as error:
        raise FileSystemError(
            f"{path.name}: the safetensors library does not read what was written: {error}"
        ) from error
    pairs = zip_longest(_in_order(tensors), _in_order(found))
    for expected, other in [*pairs, (dict(metadata), found_metadata)]:
        if expected != other:
            raise FileSystemError(
                f"{path.name}: {expected} was written, but the safetensors library finds {other}"
            )


def _in_order(tensors: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Return the tensors in the order of their data, then those without elements by name."""
    empty = sorted(tensor for tensor in tensors if 0 in tensor[2])
    return [tensor for tensor in tensors if 0 not in tensor[2]] + empty
