"""The header of a GGUF file, versions 2 and 3, read with bounds checks.

Layout (from the format's description), little endian: magic, version, the counts of tensors and
of metadata pairs, the pairs, the tensor descriptions, padding, the data.
"""

import math
import mmap
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from swiftchat.errors import DamagedModelFile
from swiftchat.weights.formats.ggml_dequantize import BLOCK_TYPES
from swiftchat.weights.formats.gguf_types import type_name
from swiftchat.weights.formats.tensor_info import reject_overlaps

# Limits of a header. A vocabulary of 400,000 tokens with scores, types and merges stays below
# each; a header at the first three limits takes less than 400 MB when parsed.
_MAX_HEADER_BYTES = 128 * 1024 * 1024
_MAX_ELEMENTS = 3_000_000
_MAX_ENTRIES = 65_536
_MAX_STRING_BYTES = 16 * 1024 * 1024
_MAX_NAME_BYTES = 1024
_MAX_DIMENSIONS = 4
_MAX_ALIGNMENT_BYTES = 65_536

_SCALARS: Mapping[int, str] = {
    0: "u1",
    1: "i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_STRING, _ARRAY = 8, 9
_SMALLEST_PAIR_BYTES = 8 + 4 + 1
_SMALLEST_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8


@dataclass(frozen=True)
class GgufTensor:
    """A tensor in a file: `shape` is row-major, `offset` and `nbytes` are in bytes.

    The size of a tensor whose type is not in `BLOCK_TYPES` is not known: its `nbytes` are 0.
    `file_index` is the file of a split model, from 0.
    """

    name: str
    shape: tuple[int, ...]
    type_name: str
    offset: int
    nbytes: int
    file_index: int = 0


@dataclass(frozen=True)
class _Array:
    """An array in a header, which may be a vocabulary of many megabytes as Python objects."""

    read: Callable[[], list[Any]]


class _Metadata(Mapping[str, Any]):
    """The pairs of a header; every access to an array reads a new list.

    Raises `BadModelFile` for an array of strings that are not UTF-8.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        return value.read() if isinstance(value, _Array) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Header:
    """A cursor over the header that checks every step against the limits."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._limit = min(len(data), _MAX_HEADER_BYTES)
        self._at = 8
        self._elements = 0

    def parse(self) -> tuple[Mapping[str, Any], dict[str, GgufTensor]]:
        num_tensors = self._count("tensors", _SMALLEST_TENSOR_BYTES, _MAX_ENTRIES)
        num_pairs = self._count("metadata pairs", _SMALLEST_PAIR_BYTES, _MAX_ENTRIES)
        metadata: dict[str, Any] = {}
        for _ in range(num_pairs):
            key = self._string("a metadata key", _MAX_NAME_BYTES)
            if key in metadata:
                raise self._bad(f"metadata key {key} occurs twice")
            metadata[key] = self._value(key)
        alignment = self._alignment(metadata)
        descriptions = [self._description() for _ in range(num_tensors)]
        data_start = -(-self._at // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, shape, kind, offset in descriptions:
            if name in tensors:
                raise self._bad(f"tensor {name} occurs twice")
            if offset % alignment:
                raise self._bad(f"tensor {name}: offset {offset} is not a multiple of {alignment}")
            tensors[name] = self._tensor(name, shape, kind, data_start + offset)
        reject_overlaps(self._path, tensors.values())
        return _Metadata(metadata), tensors

    def _bad(self, problem: str) -> DamagedModelFile:
        return DamagedModelFile(f"{self._path}: {problem}")

    def _skip(self, nbytes: int, what: str) -> int:
        """Move the cursor by `nbytes` and return its old position."""
        begin = self._at
        if nbytes > self._limit - begin:
            raise self._bad(f"{what} of {nbytes} bytes does not fit into the file: truncated?")
        self._at = begin + nbytes
        return begin

    def _u32(self, what: str) -> int:
        return int(struct.unpack_from("<I", self._data, self._skip(4, what))[0])

    def _u64(self, what: str) -> int:
        return int(struct.unpack_from("<Q", self._data, self._skip(8, what))[0])

    def _count(self, what: str, smallest_bytes: int, most: int) -> int:
        count = self._u64(f"the number of {what}")
        if count > most:
            raise self._bad(f"{count} {what}, more than {most}")
        if count * smallest_bytes > self._limit - self._at:
            raise self._bad(f"{count} {what}, more than fit into the file")
        return count

    def _string(self, what: str, most: int = _MAX_STRING_BYTES) -> str:
        length = self._u64(what)
        if length > most:
            raise self._bad(f"{what} has {length} bytes, more than {most}")
        begin = self._skip(length, what)
        try:
            return self._data[begin : begin + length].decode()
        except UnicodeDecodeError as error:
            raise self._bad(f"{what} is not UTF-8") from error

    def _value(self, key: str) -> Any:
        kind = self._u32(f"the type of {key}")
        if kind == _STRING:
            return self._string(key)
        if kind == _ARRAY:
            return self._array(key)
        return self._scalars(self._skip_scalars(key, kind, 1), kind, 1)[0]

    def _skip_scalars(self, key: str, kind: int, count: int) -> int:
        """Move the cursor behind an array and return where it begins."""
        if kind not in _SCALARS:
            raise self._bad(f"{key} has the unknown type {kind}")
        return self._skip(count * np.dtype(_SCALARS[kind]).itemsize, key)

    def _scalars(self, begin: int, kind: int, count: int) -> list[Any]:
        dtype = np.dtype(_SCALARS[kind])
        if dtype.kind == "b":
            return [byte != 0 for byte in self._data[begin : begin + count]]
        values: list[Any] = np.frombuffer(self._data, dtype, count, begin).tolist()
        return values

    def _array(self, key: str) -> _Array:
        kind = self._u32(f"the element type of {key}")
        if kind == _ARRAY:
            raise self._bad(f"{key} is an array of arrays, which is not supported")
        smallest = 8 if kind == _STRING else 1
        count = self._count(f"elements of {key}", smallest, _MAX_ELEMENTS - self._elements)
        self._elements += count
        if kind == _STRING:
            return _Array(partial(self._strings, key, self._skip_strings(key, count), count))
        return _Array(partial(self._scalars, self._skip_scalars(key, kind, count), kind, count))

    def _skip_strings(self, key: str, count: int) -> int:
        """Move the cursor behind an array of strings and return where it begins."""
        # The checks of `_string`, inlined: vocabularies have 10^5 entries and more.
        data, limit, begin = self._data, self._limit, self._at
        at = begin
        length_at = struct.Struct("<Q").unpack_from
        try:
            for _ in range(count):
                (length,) = length_at(data, at)
                at += 8 + length
                if at > limit:
                    raise self._bad(f"a string of {length} bytes in {key} does not fit: truncated?")
        except struct.error as error:
            raise self._bad(f"{key} does not fit into the file: truncated?") from error
        self._at = at
        return begin

    def _strings(self, key: str, begin: int, count: int) -> list[str]:
        data, at = self._data, begin
        length_at = struct.Struct("<Q").unpack_from
        found = []
        try:
            for _ in range(count):
                (length,) = length_at(data, at)
                at += 8
                found.append(data[at : at + length].decode())
                at += length
        except UnicodeDecodeError as error:
            raise self._bad(f"{key} has a string that is not UTF-8") from error
        return found

    def _alignment(self, metadata: Mapping[str, Any]) -> int:
        value = metadata.get("general.alignment", 32)
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if not is_integer or not 0 < value <= _MAX_ALIGNMENT_BYTES or value & (value - 1):
            raise self._bad(f"general.alignment must be a power of two, not {str(value)[:40]}")
        return int(value)

    def _description(self) -> tuple[str, tuple[int, ...], str, int]:
        name = self._string("a tensor name", _MAX_NAME_BYTES)
        dimensions = self._u32(f"the dimensions of {name}")
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise self._bad(
                f"tensor {name} has {dimensions} dimensions, expected 1 to {_MAX_DIMENSIONS}"
            )
        # Stored fastest dimension first, the reverse of row-major order.
        shape = tuple(self._u64(f"the shape of {name}") for _ in range(dimensions))[::-1]
        kind = type_name(self._u32(f"the type of {name}"))
        return name, shape, kind, self._u64(f"the offset of {name}")

    def _tensor(self, name: str, shape: tuple[int, ...], kind: str, offset: int) -> GgufTensor:
        if not all(shape):
            raise self._bad(f"tensor {name}: the shape {list(shape)} has no elements")
        if kind not in BLOCK_TYPES:
            return GgufTensor(name, shape, kind, offset, 0)
        block = BLOCK_TYPES[kind]
        if shape[-1] % block.block_elements:
            raise self._bad(
                f"tensor {name}: rows of {shape[-1]} are not a multiple of {block.block_elements}"
            )
        nbytes = math.prod(shape) // block.block_elements * block.block_bytes
        if offset + nbytes > len(self._data):
            raise self._bad(
                f"tensor {name}: ends at byte {offset + nbytes} of {len(self._data)}: truncated?"
            )
        return GgufTensor(name, shape, kind, offset, nbytes)
