"""The safetensors format: headers read with bounds, files written as a stream.

Layout (from the format's published description): an unsigned 64-bit little-endian header
length, a JSON object naming dtype, shape and byte range of every tensor, then the data.
"""

import hashlib
import itertools
import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from swiftchat.errors import BadModelFile
from swiftchat.weights.files.reading import reject_other_content

__all__ = [
    "ITEM_BYTES",
    "TensorInfo",
    "Writer",
    "create_safetensors",
    "header_bytes",
    "read_header",
    "spec_bytes",
]

ITEM_BYTES: Mapping[str, int] = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
}

# Parsed JSON takes up to twenty times its text; the headers of the largest models have 10 MB.
_MAX_HEADER_BYTES = 16 * 1024 * 1024
_MAX_DIMENSIONS = 8
_ALIGNMENT_BYTES = 64

TensorSpec = tuple[str, str, tuple[int, ...]]


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies: `offset` is absolute in `file`, `offset` and `nbytes` are bytes.

    `dtype` is spelled as the format does ("BF16", "F32", …); `shape` is row-major.
    """

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def read_header(path: Path) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """Tensors and metadata of one file, from its header alone.

    Raises `BadModelFile` naming the file (and the tensor) when a length, dtype, shape or byte
    range cannot be true, when two tensors overlap, or when the file is something else.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(512)
        reject_other_content(path, start)
        if len(start) < 8:
            raise _bad(path, f"only {len(start)} bytes long")
        (length,) = struct.unpack("<Q", start[:8])
        if length > size - 8:
            raise _bad(path, f"header of {length} bytes announced in a file of {size}: truncated?")
        if length > _MAX_HEADER_BYTES:
            raise _bad(path, f"header of {length} bytes, more than {_MAX_HEADER_BYTES}")
        file.seek(8)
        header = _parse(path, file.read(length))
    metadata = _metadata(path, header.pop("__metadata__", None))
    tensors = {name: _tensor(path, name, entry, 8 + length, size) for name, entry in header.items()}
    _refuse_overlaps(path, tensors)
    return tensors, metadata


def _bad(path: Path, what: str) -> BadModelFile:
    return BadModelFile(f"{path}: {what}")


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise _bad(path, "a name occurs twice in the header")
        return found

    try:
        header = json.loads(text, object_pairs_hook=no_duplicates)
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
    shown = name if len(name) <= 200 else name[:199] + "…"
    if not isinstance(entry, dict):
        raise _bad(path, f"tensor {shown}: not an object")
    dtype, shape, span = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise _bad(path, f"tensor {shown}: unknown dtype {str(dtype)[:40]!r}")
    if (
        not isinstance(shape, list)
        or len(shape) > _MAX_DIMENSIONS
        or not all(map(_is_count, shape))
    ):
        raise _bad(path, f"tensor {shown}: the shape is not a short list of sizes")
    if not isinstance(span, list) or len(span) != 2 or not all(map(_is_count, span)):
        raise _bad(path, f"tensor {shown}: data_offsets is not a pair of offsets")
    begin, end = span
    nbytes = math.prod(shape) * ITEM_BYTES[dtype]
    if end - begin != nbytes:
        raise _bad(path, f"tensor {shown}: {dtype} {shape} needs {nbytes} bytes, has {end - begin}")
    if data_start + end > size:
        raise _bad(path, f"tensor {shown}: ends at byte {data_start + end} of {size}: truncated?")
    return TensorInfo(name, path, dtype, tuple(shape), data_start + begin, nbytes)


def _refuse_overlaps(path: Path, tensors: Mapping[str, TensorInfo]) -> None:
    ordered = sorted((t for t in tensors.values() if t.nbytes), key=lambda t: t.offset)
    for before, after in itertools.pairwise(ordered):
        if before.offset + before.nbytes > after.offset:
            raise _bad(path, f"tensors {before.name} and {after.name} overlap")


def header_bytes(tensors: Sequence[TensorSpec], metadata: Mapping[str, str]) -> bytes:
    """Length and header for (name, dtype, shape) in the order their data will follow.

    Padded with spaces so that the data starts on a multiple of 64 bytes.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, dtype, shape in tensors:
        nbytes = math.prod(shape) * ITEM_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + nbytes]}
        offset += nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT_BYTES)
    return struct.pack("<Q", len(text)) + text


def spec_bytes(tensor: TensorSpec) -> int:
    """Bytes of one tensor's numbers."""
    _, dtype, shape = tensor
    return math.prod(shape) * ITEM_BYTES[dtype]


class Writer:
    """Writes the data of announced tensors one after the other; made by `create_safetensors`.

    `digest` is the SHA-256 of all that was written so far, header included.
    """

    def __init__(self, file: BinaryIO, tensors: Sequence[TensorSpec], header: bytes) -> None:
        self._file = file
        self._due = list(reversed(tensors))
        self.digest = hashlib.sha256(header)
        file.write(header)

    def write(self, name: str, array: npt.NDArray[Any]) -> None:
        """Append the next tensor; name, shape and item size must be the announced ones."""
        due, dtype, shape = self._due.pop()
        if (name, array.shape, array.itemsize) != (due, shape, ITEM_BYTES[dtype]):
            raise ValueError(f"{name} {array.shape} {array.dtype} written, {due} {shape} due")
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        self.digest.update(data)
        self._file.write(data)

    def finish(self) -> None:
        """Flush to the disk; every announced tensor must have been written."""
        if self._due:
            raise ValueError(f"{len(self._due)} announced tensors were not written")
        self._file.flush()


@contextmanager
def create_safetensors(
    path: Path, tensors: Sequence[TensorSpec], metadata: Mapping[str, str]
) -> Iterator[Writer]:
    """Write a new safetensors file holding `tensors`, (name, dtype, shape) in order of data."""
    with path.open("xb") as file:
        writer = Writer(file, tensors, header_bytes(tensors, metadata))
        yield writer
        writer.finish()
