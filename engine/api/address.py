"""Where an engine can be reached: HOST:PORT, or the path of a Unix socket. No torch."""

import ipaddress
import os
import re
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import platformdirs

from swiftchat.errors import DeviceError, UsageError

_HOST_AND_PORT = re.compile(r"(\[[^\]/]+\]|[^:/\[\]]+):(\d{1,5})")


@dataclass(frozen=True)
class Address:
    """Of `path`, or else of `host` and `port`."""

    host: str = ""
    port: int = 0
    path: Path | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """HOST:PORT, [HOST]:PORT for IPv6, or a path, which has a slash; else `UsageError`."""
        if "/" in text:
            return cls(path=Path(text).expanduser())
        found = _HOST_AND_PORT.fullmatch(text)
        if found is None or int(found[2]) >= 1 << 16:
            hint = "as 127.0.0.1:4000, or ./engine.sock"
            raise UsageError(f"{text!r} is neither HOST:PORT nor a path with a slash", hint)
        return cls(found[1].strip("[]"), int(found[2]))

    def __str__(self) -> str:
        if self.path is not None:
            return str(self.path) if "/" in str(self.path) else f"./{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def connect(self, timeout_s: float) -> socket.socket:
        """A connected socket without a timeout; raises `OSError`, or `UnicodeError` for no host."""
        if self.path is None:
            connected = socket.create_connection((self.host, self.port), timeout_s)
            answer_at_once(connected)
        else:
            connected = socket.socket(socket.AF_UNIX)
            connected.settimeout(timeout_s)
            connected.connect(str(self.path))
        connected.settimeout(None)
        return connected

    def listen(self) -> socket.socket:
        """A listening socket that only this machine reaches, a Unix socket only this user.

        Raises `UsageError` for an address that others reach, `DeviceError` where it is taken.
        """
        try:
            if self.path is not None:
                return _listen_at(self.path)
            family, _, _, _, place = socket.getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM
            )[0]
            if not ipaddress.ip_address(place[0]).is_loopback:
                raise UsageError(
                    f"{self} can be reached from other machines",
                    "listen at 127.0.0.1, and attach from elsewhere through ssh -L",
                )
            return socket.create_server(place[:2], family=family)
        except (OSError, UnicodeError) as error:  # the latter for what can be no host's name
            words = getattr(error, "strerror", None) or error
            raise DeviceError(
                f"cannot listen at {self}: {words}", "choose another with --listen"
            ) from error

    @property
    def token_file(self) -> Path:
        """Where an engine that listens at this port puts its token if nobody says otherwise."""
        return platformdirs.user_state_path("swiftchat") / f"engine-{self.port}.token"


def answer_at_once(connected: socket.socket) -> None:
    """Have a TCP connection send without waiting, and end within 5 s of losing the other host."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE") and hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 4000)


def _listen_at(path: Path) -> socket.socket:
    if path.is_socket() and not _is_answered(path):
        path.unlink()  # of an engine that was killed
    listening = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listening.bind(str(path))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    listening.listen()
    return listening


def _is_answered(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
    return True
