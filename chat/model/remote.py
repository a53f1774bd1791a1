"""The engine that `--connect` names, as the place where a speaker's answers come from."""

from pathlib import Path

from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.api.remote import RemoteEngine, connect_engine, read_token
from swiftchat.errors import DeviceError


class RemoteEngineFactory:
    """Attached once already, so that what is wrong is told before anything is typed.

    `folder` has the tokenizer of the engine's model, which is called `name`. Raises `UsageError`,
    and `DeviceError` where no engine answers.
    """

    def __init__(self, address: str, token_file: str | None) -> None:
        import platformdirs

        self._address, self._token_file = address, token_file
        self._unused: RemoteEngine | None = self._attach()
        self.name, self._files = self._unused.name, self._unused.files
        self.folder = self._unused.fetch_model_files(
            platformdirs.user_cache_path("swiftchat") / "far"
        )

    def start(self, config: EngineConfig, path: Path) -> EngineClient:
        """A client of the engine, attached anew after the first time; how it runs is its own."""
        engine, self._unused = self._unused or self._attach(), None
        if engine.files != self._files:
            engine.close()
            raise DeviceError(
                f"another model is at {self._address} now: {engine.name}",
                "end swiftchat and start it again",
            )
        engine.start_session()
        return EngineClient(config, path, engine).start()

    def _attach(self) -> RemoteEngine:
        token_file = Path(self._token_file).expanduser() if self._token_file else None
        return connect_engine(self._address, read_token(token_file, self._address))
