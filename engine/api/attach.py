"""The engines that serve this user: attaching a terminal, listing and ending them."""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from swiftchat.engine.api.address import Address, remove_stale_socket
from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.engine_key import engine_key
from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.api.protocol import RESTART_HINT, EngineStatus
from swiftchat.engine.api.remote import RemoteEngine
from swiftchat.engine.api.runtime_folder import RuntimeFolder, check_socket
from swiftchat.errors import DeviceError, FileSystemError, SwiftchatError

_ANSWER_S = 2.0  # an engine answers at once, unless it is stopped or swapped out


@dataclass(frozen=True)
class RunningEngine:
    """An engine that listens at `socket`; `status` is None if it does not answer."""

    socket: Path
    status: EngineStatus | None


def attach(
    config: EngineConfig, path: Path, environ: Mapping[str, str] = os.environ
) -> EngineClient | None:
    """Return a client of the running engine with this model and these options, None without one.

    None also for an engine that does not answer. Raises `FileSystemError` if another user could
    have put the socket there.
    """
    folder = RuntimeFolder()
    socket = folder.socket(engine_key(path, config, environ))
    if not socket.exists():
        return None
    try:
        engine = connect(socket, folder)
    except FileSystemError:
        raise
    except SwiftchatError:  # just ended, stopped, of another version, or with all terminals in use
        return None
    engine.start_session()
    return EngineClient(config, path, engine).start()


def connect(socket: Path, folder: RuntimeFolder) -> RemoteEngine:
    """Connect to the engine at a socket in the folder.

    Raises `FileSystemError` for a socket or folder of another user, and as `RemoteEngine`.
    """
    folder.check()
    try:
        check_socket(socket)
    except OSError as error:
        raise DeviceError(f"no engine listens at {socket}: {error.strerror}") from error
    return RemoteEngine(Address(path=socket), None, _ANSWER_S, RESTART_HINT)


def running_engines(folder: RuntimeFolder) -> list[RunningEngine]:
    """List the engines of the folder; remove sockets that killed engines left behind.

    Raises `FileSystemError` if the folder is not private.
    """
    return [
        RunningEngine(socket, _status(socket, folder))
        for socket in folder.sockets()
        if not remove_stale_socket(socket)
    ]


def _status(socket: Path, folder: RuntimeFolder) -> EngineStatus | None:
    try:
        with contextlib.closing(connect(socket, folder)) as engine:
            return engine.status()
    except FileSystemError:
        raise
    except SwiftchatError:
        return None
