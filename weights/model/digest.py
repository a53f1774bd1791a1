"""A digest of a model's files that is cheap: it reads little of large files."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from swiftchat.errors.regular_file import open_regular
from swiftchat.weights.gguf.source import GgufSource

_WHOLE_BYTES = 1 << 20
_HEAD_BYTES = 1 << 16


def model_digest(path: Path) -> str:
    """Return 64 hexadecimal digits for the files of a model directory, another for other weights.

    Files up to 1 MiB count with their content. Larger ones count with size, first 64 KiB, inode
    and both times of change: whatever replaces or changes a file also changes one of them, even if
    it sets the time of modification back. So a copy of a model has another digest. A file that may
    not be read counts without its content: it is no part of a model that was loaded. Raises OSError
    for other failures.
    """
    digest = hashlib.sha256()
    for file in _files(path):
        state = file.stat()
        is_small = state.st_size <= _WHOLE_BYTES
        content = ""
        with suppress(PermissionError), open_regular(file) as opened:
            content = hashlib.sha256(opened.read(-1 if is_small else _HEAD_BYTES)).hexdigest()
        times = [state.st_ino, state.st_mtime_ns, state.st_ctime_ns]
        entry = [file.name, state.st_size, content, [] if is_small else times]
        digest.update(json.dumps(entry).encode())
    return digest.hexdigest()


def _files(path: Path) -> Iterator[Path]:
    yield from (file for file in sorted(path.rglob("*")) if file.is_file())
    source = GgufSource.read(path)
    if source is not None:
        yield from source.files
