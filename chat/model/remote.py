"""Connection to the running engine of `--connect`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from swiftchat.chat.model.model_server import ModelServer, is_server_url
from swiftchat.chat.options.config import ChatConfig
from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.api.remote import RemoteEngine, connect_engine, read_token
from swiftchat.errors import DeviceError
from swiftchat.weights.derived import in_cache
from swiftchat.weights.files.paths import user_path


class RemoteEngineFactory:
    """Starts clients of a running engine, for `ChatModel`.

    The constructor connects, so that errors appear before the first prompt: `UsageError`, or
    `DeviceError` if no engine answers. `name` is the engine's model, `folder` has its tokenizer.
    """

    def __init__(self, config: ChatConfig) -> None:
        import platformdirs

        assert config.connect is not None
        self._address = config.connect
        self._connect = _connector(config.connect, config)
        self._unused: RemoteEngine | None = self._connect()
        self.name, self._files = self._unused.name, self._unused.files
        cache = platformdirs.user_cache_path("swiftchat") / "far"
        self.folder = in_cache(cache, self._unused.fetch_model_files)

    def start(self, config: EngineConfig, path: Path) -> EngineClient:
        """Return a client of the engine; reconnect after the first call.

        Raises `DeviceError` if the engine now runs another model.
        """
        engine, self._unused = self._unused or self._connect(), None
        if engine.files != self._files:
            engine.close()
            raise DeviceError(
                f"the engine at {self._address} now runs another model: {engine.name}",
                "restart swiftchat",
            )
        engine.start_session()
        return EngineClient(config, path, engine).start()


def _connector(address: str, config: ChatConfig) -> Callable[[], RemoteEngine]:
    """Return what connects to an engine: at an address, or a model's of a server."""
    token_file = user_path(config.token_file) if config.token_file else None
    if is_server_url(address):
        return partial(ModelServer(address, token_file).connect, config.model)
    return lambda: connect_engine(address, read_token(token_file, address))
