"""JSON files out of a model's directory, read with bounds."""

import json
from pathlib import Path
from typing import Any

from swiftchat.errors import BadModelFile, FileSystemError
from swiftchat.weights.files.foreign import reject_foreign_file

__all__ = ["read_json"]

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
