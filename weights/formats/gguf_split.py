"""GGUF models in several files, `NAME-00001-of-0000N.gguf`, opened as one."""

import dataclasses
import re
from pathlib import Path

from swiftchat.errors import BadModelFile
from swiftchat.weights.formats.gguf import GgufFile

__all__ = ["open_gguf"]

_MAX_FILES = 1000


def open_gguf(path: Path) -> GgufFile:
    """The model in `path` and, where it is the first file of several, in those beside it.

    The first file has the metadata, each its own tensors. Raises what `GgufFile.open` does, and
    `BadModelFile` when `path` is not the first, or when a file is missing, of another model, or
    has a tensor that another one has.
    """
    first = GgufFile.open(path)
    count = first.metadata.get("split.count", 1)
    if type(count) is not int or not 0 <= count <= _MAX_FILES:
        raise BadModelFile(f"{path}: split.count is {str(count)[:40]}")
    if count <= 1:
        return first
    if first.metadata.get("split.no") != 0:
        raise BadModelFile(
            f"{path} is not the first of its {count} files", f"give {_name(path, 1, count)}"
        )
    files = [first]
    for number in range(2, count + 1):
        file = path.with_name(_name(path, number, count))
        if not file.is_file():
            raise BadModelFile(f"{file} is missing: the model has {count} files")
        files.append(_follower(file, number, count))
    merged = _merged(files)
    announced = first.metadata.get("split.tensors.count", len(merged.tensors))
    if announced != len(merged.tensors):
        raise BadModelFile(
            f"{path}: expected {announced} tensors in {count} files, found {len(merged.tensors)}"
        )
    return merged


def _name(path: Path, number: int, count: int) -> str:
    ending = f"-{number:05}-of-{count:05}.gguf"
    name, replaced = re.subn(r"-\d{5}-of-\d{5}\.gguf$", ending, path.name)
    if not replaced:
        raise BadModelFile(f"{path}: one of {count} files, but not named …{ending}")
    return name


def _follower(path: Path, number: int, count: int) -> GgufFile:
    file = GgufFile.open(path)
    found = (file.metadata.get("split.no"), file.metadata.get("split.count"))
    if found != (number - 1, count):
        raise BadModelFile(
            f"{path}: expected split.no {number - 1} of {count}, found {found[0]} of {found[1]}"
        )
    return file


def _merged(files: list[GgufFile]) -> GgufFile:
    tensors = {}
    for part, file in enumerate(files):
        for name, tensor in file.tensors.items():
            if name in tensors:
                raise BadModelFile(f"{file.path}: tensor {name} is in another file too")
            tensors[name] = dataclasses.replace(tensor, part=part)
    first = files[0]
    return GgufFile(
        first.path,
        first.metadata,
        tensors,
        [data for file in files for data in file.data],
        [file.path for file in files],
    )
