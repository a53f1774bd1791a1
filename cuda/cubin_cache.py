"""A disk cache of compiled kernels; a damaged entry is compiled again."""

import hashlib
import os
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import platformdirs

from swiftchat.cuda import nvrtc

_DIGEST_BYTES = hashlib.sha256().digest_size


def user_cache_folder() -> Path:
    """Return the user's folder of compiled kernels."""
    return platformdirs.user_cache_path("swiftchat") / "cubins"


class CubinCache:
    """Cubins in `folder`, each preceded by its SHA-256; with None nothing is stored.

    An entry's key covers the source, all headers, the options and the compiler's version. Two
    processes may compile the same kernel at once: both write the same entry.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def get(self, name: str, arch: str, defines: Mapping[str, str]) -> bytes:
        """Return the cubin of a kernel; compile it if it is not stored."""
        if self.folder is None:
            return nvrtc.compile_cubin(name, arch, defines)
        file = self.folder / f"{name}-{arch}-{_key(name, arch, defines)}.cubin"
        cubin = _read(file)
        if cubin is None:
            cubin = nvrtc.compile_cubin(name, arch, defines)
            _write(file, cubin)
        return cubin


def _key(name: str, arch: str, defines: Mapping[str, str]) -> str:
    digest = hashlib.sha256(_headers_digest())
    digest.update(nvrtc.source(name).read_bytes())
    # Paths of header folders do not change the machine code.
    options = [o for o in nvrtc.compile_options(arch, defines) if not o.startswith("-I")]
    digest.update("\n".join([nvrtc.version(), *options]).encode())
    return digest.hexdigest()[:32]


@cache
def _headers_digest() -> bytes:
    digest = hashlib.sha256()
    for header in sorted(nvrtc.KERNELS.rglob("*.cuh")):
        digest.update(header.name.encode() + header.read_bytes())
    return digest.digest()


def _read(file: Path) -> bytes | None:
    try:
        entry = file.read_bytes()
    except OSError:
        return None
    cubin = entry[_DIGEST_BYTES:]
    return cubin if hashlib.sha256(cubin).digest() == entry[:_DIGEST_BYTES] else None


def _write(file: Path, cubin: bytes) -> None:
    """Store a cubin; ignore errors, since the next run can compile it again."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=".cubin-")
    except OSError:
        return
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(hashlib.sha256(cubin).digest() + cubin)
        Path(temporary).replace(file)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
