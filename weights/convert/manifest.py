"""`swiftchat.json`: the files of a conversion with checksums, found by reading them back."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from swiftchat.errors import FileSystemError
from swiftchat.weights.files.disk import Progress
from swiftchat.weights.files.reading import encode_json
from swiftchat.weights.formats.safetensors import SafetensorsWriter

MANIFEST = "swiftchat.json"


def encode_manifest(
    directory: Path, digests: Mapping[str, str], fingerprint: str, tp: int = 1
) -> bytes:
    """Return the manifest: size and SHA-256 of every file, and the source's fingerprint.

    With `tp` not 1 it also has the number of ranks.
    """
    files = {
        name: {"bytes": (directory / name).stat().st_size, "sha256": digest}
        for name, digest in digests.items()
    }
    ranks = {} if tp == 1 else {"tp": tp}
    return encode_json({"source": fingerprint, **ranks, "files": files})


def read_back(
    directory: Path,
    small_files: Mapping[str, bytes],
    writers: Mapping[str, SafetensorsWriter],
    progress: Progress | None,
) -> dict[str, str]:
    """Return the SHA-256 of each file in `directory`, read again.

    Raises `FileSystemError` for a file that has not the content or the tensors that were written.
    """
    total = sum((directory / name).stat().st_size for name in (*small_files, *writers))
    done = 0

    def report(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if progress:
            progress("checking", done, total)

    digests = {}
    for name, content in small_files.items():
        found = _read_small(directory / name, content, report)
        digests[name] = _same(name, found)
    for name, writer in writers.items():
        with (directory / name).open("rb") as file:
            digests[name] = _same(name, writer.read_back(file, report))
    return digests


def _read_small(path: Path, expected: bytes, report: Callable[[int], None]) -> str | None:
    content = path.read_bytes()
    report(len(content))
    return hashlib.sha256(content).hexdigest() if content == expected else None


def _same(name: str, digest: str | None) -> str:
    if digest is None:
        raise FileSystemError(f"{name} reads back differently than it was written")
    return digest
