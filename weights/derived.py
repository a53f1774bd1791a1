"""Files made from models, in a cache folder: small files of GGUF files, and conversions.

A cache is never necessary: what cannot be written there is made in a folder of the process.

`gguf/KEY/FILE NAME` is the model directory of a GGUF file, whose weights stay in that file;
`NAME-KEY` is a conversion. KEY is a digest of the place of the model.
"""

import atexit
import functools
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from swiftchat.errors import BadModelFile, FileSystemError, ModelNotFound
from swiftchat.weights.files.disk import Progress, as_file_system_error, atomic_directory
from swiftchat.weights.files.lock import exclusive_lock
from swiftchat.weights.gguf.source import GgufSource

_GGUF = "gguf"
_NEEDED_BYTES = 50_000_000  # for the small files of a model, at most


@dataclass(frozen=True)
class DerivedFiles:
    """Files made from the model `name`; `origin` is its GGUF file, which may be gone, or None."""

    name: str
    path: Path
    origin: Path | None = None

    def remove(self) -> None:
        """Delete them; raises OSError."""
        shutil.rmtree(self.path)
        if self.path.parent.parent.name == _GGUF:
            self.path.parent.rmdir()


def gguf_directory(cache: Path, file: Path) -> Path:
    """Return the model directory of a GGUF file, made or renewed if the file has changed.

    It has the name of the file. Raises `ModelNotFound` if there is no file, `BadModelFile` if it
    is damaged or not supported, `FileSystemError` if no directory can be written.
    """
    # Links are not followed: in some caches they lead to files that are named by digests.
    absolute = Path(os.path.abspath(file))  # noqa: PTH100
    if not absolute.is_file():
        raise ModelNotFound(f"no file {file}")
    return in_cache(cache, lambda folder: _gguf_directory(folder, absolute))


def _gguf_directory(cache: Path, absolute: Path) -> Path:
    directory = cache / _GGUF / _key(str(absolute)) / absolute.name
    if _is_current(directory):
        return directory
    # Imported here: looking up a name must not import numpy.
    from swiftchat.weights.gguf.model_files import write_model_files

    with as_file_system_error(directory, _NEEDED_BYTES):
        directory.parent.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(directory):
            if not _is_current(directory):
                with atomic_directory(directory) as new:
                    write_model_files(absolute, new)
                    if directory.exists():
                        shutil.rmtree(directory)
    return directory


def snapshot_conversion(cache: Path, snapshot: Path, progress: Progress | None) -> Path:
    """Return the conversion of a snapshot of the hub cache, made on first use."""
    return in_cache(cache, lambda folder: _snapshot_conversion(folder, snapshot, progress))


def _snapshot_conversion(cache: Path, snapshot: Path, progress: Progress | None) -> Path:
    destination = conversion_path(cache, snapshot)
    if not destination.is_dir():
        # Imported here: looking up a name must not import numpy.
        from swiftchat.weights.convert.convert import convert

        try:
            convert(snapshot, destination, progress=progress)
        except FileSystemError:
            # Another process may have finished the same conversion meanwhile.
            if not destination.is_dir():
                raise
    return destination


def in_cache(cache: Path, make: Callable[[Path], Path]) -> Path:
    """Return what `make` makes below the cache, or below a folder of this process.

    The latter is used if the cache cannot be written, and removed when the process ends.
    """
    try:
        return make(cache)
    except (FileSystemError, OSError) as error:
        try:
            return make(_temporary_cache())
        except (FileSystemError, OSError):
            if isinstance(error, OSError):
                raise FileSystemError(f"cannot use {cache}: {error.strerror}") from error
            raise error from None


@functools.cache
def _temporary_cache() -> Path:
    """Create the folder. Raises OSError."""
    folder, owner = Path(tempfile.mkdtemp(prefix="swiftchat-cache-")), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not in a fork of the process
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def conversion_path(cache: Path, snapshot: Path) -> Path:
    """Return the place of `snapshot_conversion`."""
    # The path contains the commit, so its files never change.
    return cache / f"{snapshot.parent.parent.name}-{_key(str(snapshot))}"


def derived_files(cache: Path) -> Iterator[DerivedFiles]:
    """Yield all files made from models, also those whose model is gone."""
    for config in sorted(cache.glob("*/config.json")):
        path = config.parent
        name = re.sub("-[0-9a-f]{16}$", "", path.name)
        yield DerivedFiles(name.removeprefix("models--").replace("--", "/"), path)
    for config in sorted(cache.glob(f"{_GGUF}/*/*/config.json")):
        path = config.parent
        try:
            source = GgufSource.read(path)
        except (BadModelFile, FileSystemError):
            source = None
        yield DerivedFiles(path.name, path, None if source is None else source.files[0])


def _is_current(directory: Path) -> bool:
    try:
        source = GgufSource.read(directory)
    except (BadModelFile, FileSystemError):
        return False
    return source is not None and source.is_current


def _key(identity: str) -> str:
    import hashlib  # imported here: most models need no key

    return hashlib.sha256(os.fsencode(identity)).hexdigest()[:16]
