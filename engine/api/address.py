"""Socket addresses of engines: HOST:PORT, or the path of a Unix socket."""

import fcntl
import ipaddress
import os
import re
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import platformdirs

from swiftchat.errors import DeviceError, FileSystemError, UsageError
from swiftchat.weights.files.paths import user_path

_PROBE_S = 1.0
_HOST_AND_PORT = re.compile(r"(\[[^\]/]+\]|[^:/\[\]]+):(\d{1,5})")


@dataclass(frozen=True)
class Address:
    """A Unix socket if `path` is set, else the TCP address of `host` and `port`."""

    host: str = ""
    port: int = 0
    path: Path | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse HOST:PORT, [HOST]:PORT for IPv6, or a path, which contains a slash.

        Raises `UsageError` for other text.
        """
        if "/" in text:
            return cls(path=user_path(text))
        found = _HOST_AND_PORT.fullmatch(text)
        if found is None:
            hint = "write it as 127.0.0.1:4000 or ./engine.sock"
            raise UsageError(f"{text!r} is neither HOST:PORT nor a path with a slash", hint)
        if int(found[2]) >= 1 << 16:
            raise UsageError(f"the port of {text!r} is above 65535", "choose another port")
        return cls(found[1].strip("[]"), int(found[2]))

    def __str__(self) -> str:
        if self.path is not None:
            return str(self.path) if "/" in str(self.path) else f"./{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def connect(self, timeout_s: float) -> socket.socket:
        """Return a connected socket without a timeout.

        Raises `OSError`, or `UnicodeError` for an invalid host name.
        """
        if self.path is None:
            connected = socket.create_connection((self.host, self.port), timeout_s)
            set_tcp_options(connected)
        else:
            connected = socket.socket(socket.AF_UNIX)
            connected.settimeout(timeout_s)
            connected.connect(str(self.path))
        connected.settimeout(None)
        return connected

    def listen(self, allow_remote: bool = False) -> socket.socket:
        """Return a listening socket: TCP, or a Unix socket with mode 0600.

        Raises `UsageError` for an address that is not loopback, unless `allow_remote`, and
        `DeviceError` if it is in use.
        """
        try:
            if self.path is not None:
                return _listen_at(self.path)
            family, _, _, _, resolved = socket.getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM
            )[0]
            if not (allow_remote or ipaddress.ip_address(resolved[0]).is_loopback):
                raise UsageError(
                    f"{self} can be reached from other machines",
                    "listen at 127.0.0.1 and connect from other machines through ssh -L",
                )
            return socket.create_server(resolved[:2], family=family)
        except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
            reason = getattr(error, "strerror", None) or error
            raise DeviceError(
                f"cannot listen at {self}: {reason}", "choose another address"
            ) from error

    @property
    def token_file(self) -> Path:
        """The default token file of an engine that listens at this port."""
        return platformdirs.user_state_path("swiftchat") / f"engine-{self.port}.token"


def write_token(file: Path, token: str) -> None:
    """Write a new file that only this user can read, replacing an existing one.

    Raises `FileSystemError`.
    """
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        file.touch(0o600, exist_ok=False)
        file.write_text(token + "\n")
    except OSError as error:
        raise FileSystemError(f"cannot write the token to {file}: {error.strerror}") from error


def set_tcp_options(connected: socket.socket) -> None:
    """Disable Nagle's algorithm; on Linux, fail within 5 s after the other host is lost."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE") and hasattr(socket, "TCP_USER_TIMEOUT"):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 4000)


def remove_stale_socket(path: Path) -> bool:
    """Remove a Unix socket at which nothing listens; return whether it was one."""
    with _locked(path.parent):
        if not path.is_socket() or _accepts_connections(path):
            return False
        path.unlink()
    return True


def _listen_at(path: Path) -> socket.socket:
    with _locked(path.parent):
        if path.is_socket() and not _accepts_connections(path):
            path.unlink()  # left behind by a killed engine
        listening = socket.socket(socket.AF_UNIX)
        old_umask = os.umask(0o177)
        try:
            listening.bind(str(path))
        finally:
            os.umask(old_umask)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        listening.listen()
    return listening


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder, so that no process removes a socket between `bind` and `listen` as stale."""
    folder_fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(folder_fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder_fd)


def _accepts_connections(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except TimeoutError:  # it listens, but does not accept
            return True
    return True
