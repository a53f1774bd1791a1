"""Bounded reads of model files: JSON, the check for foreign content, memory maps."""

import json
import mmap
from pathlib import Path
from typing import Any

from swiftchat.errors import BadModelFile, FileSystemError

__all__ = ["read_json", "reject_foreign_file", "release_pages"]

_MAX_JSON_BYTES = 16 * 1024 * 1024


def read_json(path: Path) -> dict[str, Any]:
    """Parse a JSON object of at most 16 MiB; anything else raises `BadModelFile` naming it."""
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise BadModelFile(f"{path}: larger than {_MAX_JSON_BYTES} bytes")
        text = path.read_bytes()
    except OSError as error:
        raise FileSystemError(f"cannot read {path}: {error.strerror}") from error
    reject_foreign_file(path, text[:512])
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadModelFile(f"{path}: not valid JSON") from error
    if not isinstance(parsed, dict):
        raise BadModelFile(f"{path}: not a JSON object")
    return parsed


def reject_foreign_file(path: Path, start: bytes) -> None:
    """Tell apart what servers and version control leave in the place of a model file."""
    if start.startswith(b"version https://git-lfs"):
        raise BadModelFile(
            f"{path}: a git-lfs pointer, not the file itself", "fetch it with: git lfs pull"
        )
    if start.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        raise BadModelFile(f"{path}: a web page, not a model file", "download the file again")


def release_pages(mapped: mmap.mmap) -> None:
    """Let the system take back the unwritten memory of a mapping, where it knows how."""
    if hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)
