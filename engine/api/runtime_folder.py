"""The private folder of the sockets at which this user's engines wait for other terminals."""

import os
import stat
import warnings
from pathlib import Path

import platformdirs

from swiftchat.errors import FileSystemError

_SUFFIX = ".sock"


class RuntimeFolder:
    """A folder with mode 0700, in the user's runtime folder by default.

    A terminal trusts whatever listens at a socket here, so `check` must pass before any is used.
    The constructor raises `FileSystemError` if another user owns the runtime folder.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or _user_path()

    def socket(self, key: str) -> Path:
        """Return the path of the socket of the engines with this key (see `engine_key`)."""
        return self.path / f"{key}{_SUFFIX}"

    def sockets(self) -> list[Path]:
        """List all sockets, [] without a folder; raises `FileSystemError` if it is not private."""
        if not self.path.exists():
            return []
        self.check()
        return sorted(self.path.glob(f"*{_SUFFIX}"))

    def create(self) -> None:
        """Create the folder unless it exists; raises `FileSystemError` if it is not private."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise FileSystemError(f"cannot create {self.path}: {error.strerror}") from error
        self.check()

    def check(self) -> None:
        """Raise `FileSystemError` if another user could have put a socket into the folder."""
        for path, others in ((self.path, 0o077), (self.path.parent, 0)):
            try:
                found = path.lstat()
            except OSError as error:
                raise FileSystemError(f"cannot use {path}: {error.strerror}") from error
            owners = {os.getuid()} if others else {os.getuid(), 0}
            if not stat.S_ISDIR(found.st_mode) or found.st_uid not in owners:
                reason = "it is not a folder of this user"
            elif found.st_mode & others:
                reason = f"its mode is {stat.S_IMODE(found.st_mode):o}, not 700"
            else:
                continue
            raise FileSystemError(
                f"{path} cannot hold sockets of engines: {reason}",
                f"check who made it, then remove it or run chmod 700 {path}",
            )


def check_socket(path: Path) -> None:
    """Raise `FileSystemError` if the socket belongs to another user, or lets others connect."""
    found = path.lstat()
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.getuid():
        reason = "is not a socket of this user"
    elif found.st_mode & 0o077:
        reason = f"has the mode {stat.S_IMODE(found.st_mode):o}, not 600"
    else:
        return
    raise FileSystemError(f"{path} {reason}", "check who made it, then remove it")


def _user_path() -> Path:
    with warnings.catch_warnings():
        # platformdirs warns when it falls back to a folder below /tmp; `check` makes that safe.
        warnings.simplefilter("ignore")
        try:
            return platformdirs.user_runtime_path("swiftchat")
        except PermissionError as error:
            raise FileSystemError(f"no private folder for sockets: {error}") from error
