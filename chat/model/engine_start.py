"""Starting the engine of a chat: the running one with this model, or a process of its own."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.terminal.output import print_notice
from swiftchat.engine.api.attach import attach, attach_or_serve
from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import EngineConfig
from swiftchat.errors import FileSystemError

StartEngine = Callable[[EngineConfig, Path], EngineClient]


def engine_starter(config: ChatConfig) -> StartEngine:
    """Return what starts the engine of a chat with these options."""
    if config.no_attach:
        return start_engine
    return partial(attach_or_start, keep_alive_s=config.keep_alive)


def start_engine(config: EngineConfig, path: Path) -> EngineClient:
    """Start a local engine process."""
    return EngineClient(config, path).start()


def attach_or_start(
    config: EngineConfig, path: Path, keep_alive_s: float | None = None
) -> EngineClient:
    """Attach to the running engine with this model and these options, or start one.

    With `keep_alive_s` it stays until nobody has used it for so long.
    """
    try:
        if keep_alive_s is not None:
            return attach_or_serve(config, path, keep_alive_s, stays=True)
        client = attach(config, path)
    except FileSystemError as error:
        print_notice(f"warning: {error.message}")
        client = None
    return client or start_engine(config, path)
