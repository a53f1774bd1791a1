"""The folder of KV caches on disk: its place, its bound, and what `swiftchat cache` shows."""

import contextlib
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from swiftchat.errors import BadModelFile, FileSystemError

FILE_SUFFIX = ".safetensors"
TEMPORARY_SUFFIX = ".partial"
_MAX_DEFAULT_BYTES = 8 << 30
_DISK_FRACTION = 0.05
_MAX_DIGITS = 19  # of a number of tokens


def user_kv_folder() -> Path:
    """Return the user's folder of KV caches."""
    return platformdirs.user_cache_path("swiftchat") / "kv"


@dataclass(frozen=True)
class KVFolderEntry:
    """The files of one model and one set of engine options.

    `model` is the path of the model, or its name if it is a dummy model. `used` is the time of the
    last use in seconds since 1970.
    """

    model: str
    dtype: str
    num_files: int
    num_tokens: int
    size_bytes: int
    used: float


class KVFolder:
    """A private folder; a folder in it has the files of one model and one set of options.

    `max_bytes` bounds all files together: the smaller of 8 GiB and 5 % of the disk by default.
    """

    def __init__(self, path: Path, max_bytes: int | None = None) -> None:
        self.path = path
        self._max_bytes = max_bytes

    @property
    def max_bytes(self) -> int:
        if self._max_bytes is not None:
            return self._max_bytes
        existing = next(p for p in (self.path, *self.path.parents) if p.exists())
        disk_bytes = shutil.disk_usage(existing).total
        return min(_MAX_DEFAULT_BYTES, int(_DISK_FRACTION * disk_bytes))

    def create(self, name: str) -> Path:
        """Create the folder of this name; raises `FileSystemError` if it is not private."""
        inner = self.path / name
        try:
            for folder in (self.path, inner):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                state = folder.lstat()
                if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid():
                    raise FileSystemError(
                        f"{folder} is not a folder of this user", "check who made it and remove it"
                    )
                if stat.S_IMODE(state.st_mode) != 0o700:
                    folder.chmod(0o700)
        except OSError as error:
            raise FileSystemError(f"cannot create {inner}: {error.strerror}") from error
        return inner

    def files(self) -> list[tuple[Path, os.stat_result]]:
        """List all files, least recently used first."""
        found = []
        for file in self.path.glob(f"*/*{FILE_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                found.append((file, file.stat()))
        return sorted(found, key=lambda one: one[1].st_mtime_ns)

    def evict(self) -> None:
        """Remove the files that were not used for the longest time, down to `max_bytes`."""
        files = self.files()
        excess = sum(state.st_size for _, state in files) - self.max_bytes
        for file, state in files:
            if excess <= 0:
                return
            file.unlink(missing_ok=True)
            excess -= state.st_size

    def remove_temporary(self) -> None:
        """Remove files that a killed engine did not finish; those being written are locked."""
        for file in self.path.glob(f"*/*{TEMPORARY_SUFFIX}"):
            with contextlib.suppress(OSError):  # being written, or removed meanwhile
                opened = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    file.unlink()
                finally:
                    os.close(opened)

    def remove_others(self, model: str, digest: str) -> int:
        """Remove the files of other weights at the place of this model; return their number.

        What cannot be removed is left: an engine never reads it.
        """
        removed = 0
        for folder in self._folders():
            file = next(folder.glob(f"*{FILE_SUFFIX}"), None)
            about = None if file is None else _metadata(file)
            if about and about.get("model") == model and about.get("model_digest") != digest:
                with contextlib.suppress(OSError):
                    removed += _remove(folder)
        return removed

    def entries(self) -> list[KVFolderEntry]:
        """Describe the content by folder, most recently used first; damaged files do not count."""
        entries = []
        for folder in self._folders():
            files = [one for one in self.files() if one[0].parent == folder]
            about = [found for file, _ in files if (found := _metadata(file))]
            if about:
                entries.append(
                    KVFolderEntry(
                        model=about[-1].get("model", ""),
                        dtype=about[-1].get("dtype", ""),
                        num_files=len(files),
                        num_tokens=sum(_number(one.get("num_tokens", "")) for one in about),
                        size_bytes=sum(state.st_size for _, state in files),
                        used=max(state.st_mtime for _, state in files),
                    )
                )
        return sorted(entries, key=lambda one: -one.used)

    def clear(self) -> tuple[int, int]:
        """Remove all files; return their number and bytes. Raises `FileSystemError`."""
        files = self.files()
        try:
            for folder in self._folders():
                _remove(folder)
        except OSError as error:
            raise FileSystemError(f"cannot clear {self.path}: {error.strerror}") from error
        return len(files), sum(state.st_size for _, state in files)

    def _folders(self) -> Iterator[Path]:
        return filter(Path.is_dir, self.path.glob("*"))


def _metadata(file: Path) -> dict[str, str] | None:
    """Return the metadata of a file, None if it is damaged or was removed meanwhile."""
    # Imported here: it needs numpy, which takes 0.1 s.
    from swiftchat.weights.formats.safetensors import read_header

    try:
        return read_header(file)[1]
    except (BadModelFile, OSError):
        return None


def _number(text: str) -> int:
    """Return a number of the metadata, 0 if it is damaged."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < _MAX_DIGITS else 0


def _remove(folder: Path) -> int:
    """Remove a folder with its files; return their number. Raises OSError."""
    num_files = sum(1 for _ in folder.glob(f"*{FILE_SUFFIX}"))
    shutil.rmtree(folder, onerror=_raise_unless_gone)
    return num_files


def _raise_unless_gone(_function: object, _path: str, info: tuple[Any, Any, Any]) -> None:
    """Raise the error of a removal, but not if another engine has removed the file meanwhile."""
    if not isinstance(info[1], FileNotFoundError):
        raise info[1]
