"""Starting the engine of a chat: the running one with this model, or a process of its own."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from swiftchat.chat.model.cold_starts import count_cold_start
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.terminal.output import print_notice
from swiftchat.engine.api.attach import attach, attach_or_serve, running_engines
from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.api.runtime_folder import RuntimeFolder
from swiftchat.errors import FileSystemError, OutOfMemory
from swiftchat.weights.hub.cached_models import name_at

StartEngine = Callable[[EngineConfig, Path], EngineClient]


def engine_starter(config: ChatConfig) -> StartEngine:
    """Return what starts the engine of a chat with these options."""
    if config.no_attach:
        return start_engine
    # Hints are for people: not in pipes.
    counts = not config.quiet and all(one.isatty() for one in (sys.stdin, sys.stdout, sys.stderr))
    return partial(attach_or_start, keep_alive_s=config.keep_alive, counts_starts=counts)


def hint_at_others(error: OutOfMemory) -> None:
    """Name the running engines in the hint of an error of loading: they have memory, too."""
    try:
        found = running_engines(RuntimeFolder())
    except FileSystemError:  # a folder of another user; a warning has named it
        return
    names = ", ".join(engine.status.name for engine in found if engine.status)
    if names:
        error.hint = f"swiftchat stop frees the memory of running engines ({names}); {error.hint}"


def start_engine(config: EngineConfig, path: Path) -> EngineClient:
    """Start a local engine process."""
    return EngineClient(config, path).start()


def attach_or_start(
    config: EngineConfig,
    path: Path,
    keep_alive_s: float | None = None,
    *,
    counts_starts: bool = False,
) -> EngineClient:
    """Attach to the running engine with this model and these options, or start one.

    With `keep_alive_s` it stays until it was not used for so long. With `counts_starts` an
    engine that does not stay counts for the hint that it may.
    """
    try:
        if keep_alive_s is not None:
            return attach_or_serve(config, path, keep_alive_s, stays=True)
        client = attach(config, path)
    except FileSystemError as error:
        print_notice(f"warning: {error.message}")
        client = None
    if client is None:
        client = start_engine(config, path)
        if counts_starts:
            count_cold_start(name_at(path))
    return client
