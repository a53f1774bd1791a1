"""A path that a tool was given: where it leads to, and files there that are what they seem."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from swiftchat.chat.terminal.sanitize import escape_invisible
from swiftchat.errors import FileSystemError, UsageError
from swiftchat.weights.files.paths import user_path

MAX_BYTES = 32 << 20
_NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC
# The right to search a folder is enough to open what is in it.
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | _NO_LINK
# The program must not wait for a pipe without a writer, nor get a terminal of its own.
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | _NO_LINK


@dataclass(frozen=True)
class Place:
    """A real path, to which no link leads; `top` is that of the working folder.

    All that is opened here is opened folder by folder, without following links: a link that was put
    into the path after the user has seen it is an error.
    """

    path: str
    top: str

    @property
    def is_inside(self) -> bool:
        return f"{self.path}/".startswith(f"{self.top.rstrip('/')}/")

    @property
    def name(self) -> str:
        """The path below the working folder, or the whole one outside of it."""
        return os.path.relpath(self.path, self.top) if self.is_inside else self.path

    @property
    def shown(self) -> str:
        """The name for a question: nothing in it is invisible."""
        return escape_invisible(self.name)

    @property
    def warning(self) -> str:
        """Why the user is asked about this place every time; empty: there is no reason."""
        if not self.is_inside:
            return f"{self.shown} is outside of the working folder"
        if any(part.startswith(".") for part in self.name.split("/") if part != "."):
            return f"{self.shown} is hidden"
        return ""

    def read(self, max_bytes: int = MAX_BYTES) -> bytes:
        """Return the content of the file. Raises `FileSystemError` and `UsageError`."""
        try:
            with self._parent() as (folder, name):
                content, _ = self._content(folder, name, max_bytes)
        except OSError as error:
            raise FileSystemError.reading(self.name, error) from error
        return content

    def content(self) -> bytes | None:
        """Return the content of the file, None if there is none; raises as `read` does."""
        return self.read() if os.path.lexists(self.path) else None

    def _content(self, folder: int, name: str, max_bytes: int) -> tuple[bytes, int]:
        """Return the content and the permissions of a file in an open folder."""
        self._check_regular(os.stat(name, dir_fd=folder, follow_symlinks=False))
        with os.fdopen(os.open(name, _FILE, dir_fd=folder), "rb") as file:
            status = os.fstat(file.fileno())
            self._check_regular(status)
            content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise UsageError(f"{self.name} is larger than {max_bytes >> 20} MiB", "name another")
        return content, status.st_mode & 0o777

    def _check_regular(self, status: os.stat_result) -> None:
        if stat.S_ISDIR(status.st_mode):
            raise UsageError(f"{self.name} is a folder", "name a file")
        if stat.S_ISLNK(status.st_mode):
            raise FileSystemError(f"{self.name} has become a link", "try it again")
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{self.name} is a device or a pipe", "name a file")

    def write(self, content: bytes, expected: bytes | None) -> None:
        """Replace the content of the file at once, or make it, and the folders that it is in.

        `expected` is what the file must have until then, None if there must be none. The file keeps
        its permissions. Raises `FileSystemError` and `UsageError`.
        """
        try:
            with self._parent(makes_folders=True) as (folder, name):
                mode = self._check_unchanged(folder, name, expected)
                self._replace(folder, name, content, mode)
        except OSError as error:
            message = f"cannot write {self.name}: {error.strerror or error}"
            raise FileSystemError(message) from error

    def _check_unchanged(self, folder: int, name: str, expected: bytes | None) -> int | None:
        """Return the permissions of the file, None if there is none."""
        try:
            found, mode = self._content(folder, name, MAX_BYTES)
        except FileNotFoundError:
            found, mode = None, None
        if found != expected:
            raise FileSystemError(f"{self.name} has changed meanwhile", "read it again")
        if mode is not None and not os.access(name, os.W_OK, dir_fd=folder):
            raise PermissionError(None, "it is read-only")
        return mode

    def _replace(self, folder: int, name: str, content: bytes, mode: int | None) -> None:
        part = f".{name[:200]}.{os.urandom(4).hex()}"
        descriptor = os.open(
            part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o666, dir_fd=folder
        )
        try:
            with os.fdopen(descriptor, "wb") as file:
                if mode is not None:
                    os.fchmod(file.fileno(), mode)
                file.write(content)
            os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(part, dir_fd=folder)
            raise

    @contextmanager
    def _parent(self, *, makes_folders: bool = False) -> Iterator[tuple[int, str]]:
        """Open the folder that has the file; yield its descriptor and the file's name there."""
        *folders, name = self.path.split("/")[1:]
        if not name:
            raise UsageError(f"{self.path} is a folder", "name a file")
        descriptor = _open_folder(folders, makes_folders=makes_folders)
        try:
            yield descriptor, name
        finally:
            os.close(descriptor)

    def entries(self) -> list[tuple[str, os.stat_result]]:
        """Return the names in the folder, sorted, with what they are. Raises `FileSystemError`."""
        try:
            opened = _open_folder([part for part in self.path.split("/") if part])
            try:
                folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY | _NO_LINK, dir_fd=opened)
            finally:
                os.close(opened)
            try:
                with os.scandir(folder) as found:
                    return sorted((one.name, one.stat(follow_symlinks=False)) for one in found)
            finally:
                os.close(folder)
        except OSError as error:
            raise FileSystemError.reading(self.name, error) from error


def _open_folder(parts: list[str], *, makes_folders: bool = False) -> int:
    descriptor = os.open("/", _FOLDER)
    for part in parts:
        try:
            try:
                inner = os.open(part, _FOLDER, dir_fd=descriptor)
            except FileNotFoundError:
                if not makes_folders:
                    raise
                os.mkdir(part, dir_fd=descriptor)
                inner = os.open(part, _FOLDER, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = inner
    return descriptor


def place_of(name: str, top: str) -> Place:
    """Return the place that a path means which is absolute, or relative to the folder `top`.

    Raises `UsageError` and `FileSystemError` for what is no path.
    """
    if not name or "\0" in name:
        raise UsageError(f"{name!r} is not a path", "name a file or a folder")
    top = os.path.realpath(top)
    return Place(os.path.realpath(Path(top) / user_path(name)), top)
