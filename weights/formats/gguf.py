"""GGUF files: metadata, tensors and their mapped data.

A model may be split into several files `NAME-00001-of-0000N.gguf`; the first has the metadata.
"""

import dataclasses
import math
import mmap
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from swiftchat.errors import BadModelFile, FileSystemError, ModelNotFound
from swiftchat.errors.regular_file import open_regular
from swiftchat.weights.files.reading import reject_other_content, release_pages
from swiftchat.weights.formats.gguf_header import GgufTensor, Header

_MAX_FILES = 1000


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
        self.metadata = metadata
        self.tensors = MappingProxyType(dict(tensors))
        self.data = tuple(data)
        self.paths = tuple(paths)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read the header of one file; arrays of its metadata become lists when they are read.

        Raises `BadModelFile` for an invalid header, `ModelNotFound` if the file does not exist,
        `FileSystemError` if it cannot be read.
        """
        try:
            with open_regular(path) as file:
                start = file.read(512)
                _reject_other_files(path, start)
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError as error:
            raise ModelNotFound(f"no file {path}") from error
        except OSError as error:
            raise FileSystemError.reading(path, error) from error
        header = Header(path, data)
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
