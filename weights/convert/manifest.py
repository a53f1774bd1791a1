"""`swiftchat.json`: what a conversion wrote, with checksums, after reading it back."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from swiftchat.errors import FileSystemError
from swiftchat.weights.files.disk import Progress
from swiftchat.weights.formats.safetensors import TensorSpec, read_header
from swiftchat.weights.sources.plan import json_bytes

__all__ = ["MANIFEST", "manifest", "self_check"]

MANIFEST = "swiftchat.json"
_CHUNK_BYTES = 1 << 22


def manifest(directory: Path, digests: Mapping[str, str], fingerprint: str, tp: int = 1) -> bytes:
    """The manifest of `directory`: size and SHA-256 of every file, and a name for the source.

    It says for how many ranks the weights are cut, where they are.
    """
    files = {
        name: {"bytes": (directory / name).stat().st_size, "sha256": digest}
        for name, digest in digests.items()
    }
    ranks = {} if tp == 1 else {"tp": tp}
    return json_bytes({"source": fingerprint, **ranks, "files": files})


def self_check(
    directory: Path,
    digests: Mapping[str, str],
    weights: Mapping[str, Sequence[TensorSpec]],
    progress: Progress | None,
) -> None:
    """Read `directory` back and raise `FileSystemError` naming the file that differs.

    `digests` are the SHA-256 of what was meant to be written, by file; `weights` the tensors
    of each safetensors file. That numbers are finite was seen when they were written.
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
    for name, announced in weights.items():
        found = read_header(directory / name)[0]
        if [(info.name, info.dtype, info.shape) for info in found.values()] != list(announced):
            raise FileSystemError(f"{name}: the tensors read back are not those written")
