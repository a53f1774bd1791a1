"""`swiftchat.json`: the files of a conversion with checksums, verified by reading them back."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from swiftchat.errors import FileSystemError
from swiftchat.weights.files.disk import Progress
from swiftchat.weights.files.reading import encode_json

MANIFEST = "swiftchat.json"
_CHUNK_BYTES = 1 << 22


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


def verify_files(directory: Path, digests: Mapping[str, str], progress: Progress | None) -> None:
    """Read `directory` back and raise `FileSystemError` for a file that differs.

    `digests` are the SHA-256 of the written content by file.
    """
    total = sum((directory / name).stat().st_size for name in digests)
    done = 0
    for name, expected in digests.items():
        digest = hashlib.sha256()
        with (directory / name).open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                done += len(chunk)
                if progress:
                    progress("checking", done, total)
        if digest.hexdigest() != expected:
            raise FileSystemError(f"{name} reads back differently than it was written")
