"""JSON files, bounded reads of regular files, the check for other file types, memory maps."""

import json
import mmap
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from swiftchat.errors import BadModelFile, DamagedModelFile, FileSystemError
from swiftchat.errors.regular_file import open_regular

_MAX_BYTES = 16 * 1024 * 1024
_MAX_SIDE_FILE_BYTES = 1 << 28
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def read_small_file(path: Path, max_bytes: int = _MAX_BYTES) -> bytes:
    """Return the content of a regular file of at most `max_bytes`.

    Raises `BadModelFile` for a larger file, one that is not regular, a git-lfs pointer or a web
    page, `FileSystemError` for one that cannot be read.
    """
    try:
        with open_regular(path) as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise FileSystemError.reading(path, error) from error
    if len(content) > max_bytes:
        raise BadModelFile(f"{path}: larger than {max_bytes} bytes")
    reject_other_content(path, content[:512])
    return content


def read_side_file(path: Path) -> bytes:
    """Return the content of a tokenizer or template file, which may be larger than others."""
    return read_small_file(path, _MAX_SIDE_FILE_BYTES)


def read_json(path: Path) -> dict[str, Any]:
    """Parse a JSON object of at most 16 MiB.

    Raises as `read_small_file` does, and `BadModelFile` for anything but a JSON object.
    """
    content = read_small_file(path)
    try:
        parsed = parse_json(content)
    except (ValueError, RecursionError) as error:
        raise DamagedModelFile(f"{path}: not valid JSON") from error
    if not isinstance(parsed, dict):
        raise BadModelFile(f"{path}: not a JSON object")
    return parsed


def parse_json(
    content: bytes, make_object: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """Parse JSON; `make_object` makes the value of an object of its pairs, by default a dict.

    Raises `ValueError`, also for lone surrogates, which no file name can have and no other reader
    accepts, and `RecursionError`.
    """
    parsed = json.loads(content.decode("utf-8-sig"), object_pairs_hook=make_object)
    if _SURROGATE.search(content):
        json.dumps(parsed, ensure_ascii=False).encode()
    return parsed


def encode_json(content: Mapping[str, Any]) -> bytes:
    """Return the text of a JSON file."""
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def reject_other_content(path: Path, start: bytes) -> None:
    """Raise `BadModelFile` if the first bytes are of a git-lfs pointer or a web page.

    Version control and servers put those in the place of a model file.
    """
    if start.startswith(b"version https://git-lfs"):
        raise BadModelFile(
            f"{path}: a git-lfs pointer, not the file itself", "fetch it with: git lfs pull"
        )
    if start.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        raise BadModelFile(f"{path}: a web page, not a model file", "download the file again")


def release_pages(mapped: mmap.mmap) -> None:
    """Let the system reclaim the pages of a mapping, if it supports that.

    Changes of a private mapping are lost.
    """
    if hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def prefetch(mapped: mmap.mmap, offset: int, nbytes: int) -> None:
    """Let the system read a part of a mapped file in the background, if it supports that."""
    if hasattr(mmap, "MADV_WILLNEED"):
        start = offset // mmap.PAGESIZE * mmap.PAGESIZE
        mapped.madvise(mmap.MADV_WILLNEED, start, min(offset + nbytes, len(mapped)) - start)
