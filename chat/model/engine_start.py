"""Starting the engine of a chat: the running one with this model, or a process of its own."""

from collections.abc import Callable
from pathlib import Path

from swiftchat.chat.terminal.output import print_notice
from swiftchat.engine.api.attach import attach
from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import EngineConfig
from swiftchat.errors import FileSystemError

StartEngine = Callable[[EngineConfig, Path], EngineClient]


def start_engine(config: EngineConfig, path: Path) -> EngineClient:
    """Start a local engine process."""
    return EngineClient(config, path).start()


def attach_or_start(config: EngineConfig, path: Path) -> EngineClient:
    """Attach to the running engine with this model and these options, or start one."""
    try:
        client = attach(config, path)
    except FileSystemError as error:
        print_notice(f"warning: {error.message}")
        client = None
    return client or start_engine(config, path)
