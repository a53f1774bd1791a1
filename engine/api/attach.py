"""The engines that serve this user: attaching a terminal, listing and ending them."""

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swiftchat.engine.api.address import Address, remove_stale_socket
from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.engine_key import engine_key
from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.api.protocol import RESTART_HINT, EngineStatus
from swiftchat.engine.api.remote import RemoteEngine
from swiftchat.engine.api.runtime_folder import RuntimeFolder, check_socket
from swiftchat.engine.api.serve_config import ServeConfig
from swiftchat.errors import DeviceError, FileSystemError, SwiftchatError
from swiftchat.weights.hub.cached_models import name_at

_ANSWER_S = 2.0  # an engine answers at once, unless it is stopped or swapped out
_START_S = 15.0  # from its socket to its first answer, on a busy machine


@dataclass(frozen=True)
class RunningEngine:
    """An engine that listens at `socket`; `status` is None if it does not answer."""

    socket: Path
    status: EngineStatus | None


def attach(
    config: EngineConfig, path: Path, keep_alive_s: float | None = None
) -> EngineClient | None:
    """Return a client of the running engine with this model and these options, None without one.

    An engine that ends without use stays at least `keep_alive_s`. None also for an engine that does
    not answer. Raises `FileSystemError` if another user could have put the socket there.
    """
    folder = RuntimeFolder()
    socket = folder.socket(engine_key(path, config, os.environ))
    try:
        age_s = time.time() - socket.stat().st_mtime
        engine = connect(socket, folder, _ANSWER_S if age_s > _START_S else _START_S)
    except FileNotFoundError:
        return None
    except FileSystemError:
        raise
    except SwiftchatError:  # just ended, stopped, of another version, or with all terminals in use
        return None
    engine.start_session(keep_alive_s)
    return EngineClient(config, path, engine).start()


def attach_or_serve(
    config: EngineConfig, path: Path, keep_alive_s: float | None = None, **how: Any
) -> EngineClient:
    """Attach to the running engine with this model and these options, or start one that serves.

    `how` are fields of `ServeConfig`. The engine serves only this terminal if what listens at its
    place does not answer. Raises `FileSystemError` if its folder is not private, or if the log of
    an engine that stays cannot be written.
    """
    serve = serve_config(config, path, keep_alive_s=keep_alive_s, **how)
    for _ in range(2):
        was_free = not Path(serve.socket).exists()
        if client := attach(config, path, keep_alive_s):
            return client
        try:
            return EngineClient(config, path, serve=serve).start()
        except DeviceError:
            if not was_free:
                break  # what listens there does not answer
        # Another process has just started an engine there.
    return EngineClient(config, path).start()


def serve_config(config: EngineConfig, path: Path, **how: Any) -> ServeConfig:
    """Return how an engine serves the terminals with this model and these options.

    `how` are fields of `ServeConfig`. Raises `FileSystemError` if its folder is not private.
    """
    folder = RuntimeFolder()
    folder.create()
    socket = folder.socket(engine_key(path, config, os.environ))
    return ServeConfig(**{"socket": str(socket), "name": name_at(path)} | how)


def num_terminals(client: EngineClient) -> int:
    """Return how many other terminals use an engine that serves them, 0 for one that has ended."""
    socket = client.socket_path
    status = _status(socket, RuntimeFolder()) if socket is not None else None
    return status.num_terminals - client.is_attached if status else 0


def connect(socket: Path, folder: RuntimeFolder, answer_s: float | None = None) -> RemoteEngine:
    """Connect to the engine at a socket in the folder.

    Raises `FileSystemError` for a socket or folder of another user, and as `RemoteEngine`.
    """
    folder.check()
    try:
        check_socket(socket)
    except OSError as error:
        raise DeviceError(f"no engine listens at {socket}: {error.strerror}") from error
    return RemoteEngine(Address(path=socket), None, answer_s or _ANSWER_S, RESTART_HINT)


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
