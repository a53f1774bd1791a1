"""GGUF files, versions 2 and 3, read with bounds checks.

Layout (from the format's description), little endian: magic, version, the counts of tensors and
of metadata pairs, the pairs, the tensor descriptions, padding, the data. A model may be split
into several files `NAME-00001-of-0000N.gguf`; the first has the metadata.
"""

import dataclasses
import math
import mmap
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from swiftchat.errors import BadModelFile, FileSystemError, ModelNotFound
from swiftchat.weights.files.reading import reject_other_content, release_pages
from swiftchat.weights.formats.ggml_dequantize import BLOCK_TYPES
from swiftchat.weights.formats.tensor_info import reject_overlaps

__all__ = ["GgufFile", "GgufTensor", "open_gguf"]

# Limits of a header. A vocabulary of 400,000 tokens with scores, types and merges stays below
# each; a header at the first three limits takes less than 400 MB when parsed.
_MAX_HEADER_BYTES = 128 * 1024 * 1024
_MAX_ELEMENTS = 3_000_000
_MAX_ENTRIES = 65_536
_MAX_STRING_BYTES = 16 * 1024 * 1024
_MAX_NAME_BYTES = 1024
_MAX_DIMENSIONS = 4
_MAX_ALIGNMENT_BYTES = 65_536
_MAX_FILES = 1000

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

_TYPE_NAMES: Mapping[int, str] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    30: "BF16",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}


@dataclass(frozen=True)
class GgufTensor:
    """A tensor in a file: `shape` is row-major, `offset` and `nbytes` are in bytes.

    `file_index` is the file of a split model, from 0.
    """

    name: str
    shape: tuple[int, ...]
    type_name: str
    offset: int
    nbytes: int
    file_index: int = 0


class GgufFile:
    """The metadata and the tensor table of a model; the data stays on the disk.

    `data` has a memory map for each file in `paths`: one, or several for a split model.
    """

    def __init__(
        self,
        path: Path,
        metadata: Mapping[str, Any],
        tensors: Mapping[str, GgufTensor],
        data: Sequence[mmap.mmap],
        paths: Sequence[Path],
    ) -> None:
        self.path = path
        self.metadata = MappingProxyType(dict(metadata))
        self.tensors = MappingProxyType(dict(tensors))
        self.data = tuple(data)
        self.paths = tuple(paths)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read the header of one file; arrays become lists.

        Raises `BadModelFile` for an invalid header, `ModelNotFound` if the file does not exist,
        `FileSystemError` if it cannot be read.
        """
        try:
            with path.open("rb") as file:
                start = file.read(512)
                _reject_other_files(path, start)
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError as error:
            raise ModelNotFound(f"no file {path}") from error
        except OSError as error:
            raise FileSystemError(f"cannot read {path}: {error.strerror}") from error
        header = _Header(path, data)
        metadata, tensors = header.parse()
        return cls(path, metadata, tensors, [data], [path])

    def rows(self, tensor: GgufTensor) -> npt.NDArray[np.uint8]:
        """Return the tensor's bytes as uint8 [rows, bytes of a row], a view of the mapped file."""
        flat = np.frombuffer(self.data[tensor.file_index], np.uint8, tensor.nbytes, tensor.offset)
        rows = math.prod(tensor.shape[:-1])
        return flat.reshape(rows, tensor.nbytes // rows)

    def release_pages(self) -> None:
        """Let the system reclaim the memory of data that was read; arrays stay valid."""
        for mapped in self.data:
            release_pages(mapped)


def _reject_other_files(path: Path, start: bytes) -> None:
    reject_other_content(path, start)
    if start[:4] != b"GGUF" or len(start) < 24:
        raise BadModelFile(f"{path}: not a GGUF file")
    (version,) = struct.unpack("<I", start[4:8])
    if version in (2 << 24, 3 << 24):
        raise BadModelFile(f"{path}: big-endian GGUF files are not supported")
    if version not in (2, 3):
        raise BadModelFile(f"{path}: GGUF version {version} is not supported; versions 2 and 3 are")


class _Header:
    """A cursor over the header that checks every step against the limits."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._limit = min(len(data), _MAX_HEADER_BYTES)
        self._at = 8
        self._elements = 0

    def parse(self) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
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
        for name, shape, type_name, offset in descriptions:
            if name in tensors:
                raise self._bad(f"tensor {name} occurs twice")
            if offset % alignment:
                raise self._bad(f"tensor {name}: offset {offset} is not a multiple of {alignment}")
            tensors[name] = self._tensor(name, shape, type_name, data_start + offset)
        reject_overlaps(self._path, tensors.values())
        return metadata, tensors

    def _bad(self, problem: str) -> BadModelFile:
        return BadModelFile(f"{self._path}: {problem}")

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
        return self._scalars(key, kind, 1)[0]

    def _scalars(self, key: str, kind: int, count: int) -> list[Any]:
        if kind not in _SCALARS:
            raise self._bad(f"{key} has the unknown type {kind}")
        dtype = np.dtype(_SCALARS[kind])
        begin = self._skip(count * dtype.itemsize, key)
        if dtype.kind == "b":
            return [byte != 0 for byte in self._data[begin : begin + count]]
        values: list[Any] = np.frombuffer(self._data, dtype, count, begin).tolist()
        return values

    def _array(self, key: str) -> list[Any]:
        kind = self._u32(f"the element type of {key}")
        if kind == _ARRAY:
            raise self._bad(f"{key} is an array of arrays, which is not supported")
        smallest = 8 if kind == _STRING else 1
        count = self._count(f"elements of {key}", smallest, _MAX_ELEMENTS - self._elements)
        self._elements += count
        return self._strings(key, count) if kind == _STRING else self._scalars(key, kind, count)

    def _strings(self, key: str, count: int) -> list[str]:
        # The checks of `_string`, inlined: vocabularies have 10^5 entries and more.
        data, limit, at = self._data, self._limit, self._at
        length_at = struct.Struct("<Q").unpack_from
        found = []
        try:
            for _ in range(count):
                (length,) = length_at(data, at)
                at += 8
                if length > limit - at:
                    raise self._bad(f"a string of {length} bytes in {key} does not fit: truncated?")
                found.append(data[at : at + length].decode())
                at += length
        except struct.error as error:
            raise self._bad(f"{key} does not fit into the file: truncated?") from error
        except UnicodeDecodeError as error:
            raise self._bad(f"{key} has a string that is not UTF-8") from error
        self._at = at
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
        type_id = self._u32(f"the type of {name}")
        type_name = _TYPE_NAMES.get(type_id, f"number {type_id}")
        if type_name not in BLOCK_TYPES:
            raise BadModelFile(
                f"{self._path}: tensor {name} has the unsupported type {type_name}",
                f"supported: {', '.join(BLOCK_TYPES)}",
            )
        return name, shape, type_name, self._u64(f"the offset of {name}")

    def _tensor(self, name: str, shape: tuple[int, ...], type_name: str, offset: int) -> GgufTensor:
        kind = BLOCK_TYPES[type_name]
        if not all(shape):
            raise self._bad(f"tensor {name}: the shape {list(shape)} has no elements")
        if shape[-1] % kind.block_elements:
            raise self._bad(
                f"tensor {name}: rows of {shape[-1]} are not a multiple of {kind.block_elements}"
            )
        nbytes = math.prod(shape) // kind.block_elements * kind.block_bytes
        if offset + nbytes > len(self._data):
            raise self._bad(
                f"tensor {name}: ends at byte {offset + nbytes} of {len(self._data)}: truncated?"
            )
        return GgufTensor(name, shape, type_name, offset, nbytes)


def open_gguf(path: Path) -> GgufFile:
    """Open the model in `path`, with the other files if it is the first of several.

    Raises as `GgufFile.open`, and `BadModelFile` if `path` is a later file, or if a file is
    missing, belongs to another model, or repeats a tensor.
    """
    first = GgufFile.open(path)
    count = first.metadata.get("split.count", 1)
    if type(count) is not int or not 0 <= count <= _MAX_FILES:
        raise BadModelFile(f"{path}: split.count is {str(count)[:40]}")
    if count <= 1:
        return first
    if first.metadata.get("split.no") != 0:
        raise BadModelFile(
            f"{path} is not the first of its {count} files", f"use {_name(path, 1, count)}"
        )
    files = [first]
    for number in range(2, count + 1):
        file = path.with_name(_name(path, number, count))
        if not file.is_file():
            raise BadModelFile(f"{file} is missing: the model has {count} files")
        files.append(_open_later_file(file, number, count))
    merged = _merged(files)
    num_tensors = first.metadata.get("split.tensors.count", len(merged.tensors))
    if num_tensors != len(merged.tensors):
        raise BadModelFile(
            f"{path}: expected {num_tensors} tensors in {count} files, found {len(merged.tensors)}"
        )
    return merged


def _name(path: Path, number: int, count: int) -> str:
    ending = f"-{number:05}-of-{count:05}.gguf"
    name, replaced = re.subn(r"-\d{5}-of-\d{5}\.gguf$", ending, path.name)
    if not replaced:
        raise BadModelFile(f"{path}: one of {count} files, so its name must end with {ending}")
    return name


def _open_later_file(path: Path, number: int, count: int) -> GgufFile:
    file = GgufFile.open(path)
    found = (file.metadata.get("split.no"), file.metadata.get("split.count"))
    if found != (number - 1, count):
        raise BadModelFile(
            f"{path}: expected split.no {number - 1} of {count}, found {found[0]} of {found[1]}"
        )
    return file


def _merged(files: list[GgufFile]) -> GgufFile:
    tensors = {}
    for index, file in enumerate(files):
        for name, tensor in file.tensors.items():
            if name in tensors:
                raise BadModelFile(f"{file.path}: tensor {name} is in another file too")
            tensors[name] = dataclasses.replace(tensor, file_index=index)
    first = files[0]
    return GgufFile(
        first.path,
        first.metadata,
        tensors,
        [data for file in files for data in file.data],
        [file.path for file in files],
    )
