"""Engines that serve terminals over a socket, and clients that connect to them."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from swiftchat.engine.api.address import Address
from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.api.remote import connect_engine, read_token
from swiftchat.engine.server.listener import Listener
from swiftchat.engine.server.serve import EngineServer
from tests.support import fake_engine, tiny
from tests.support.worker_processes import WIDE


class ConnectedClient(EngineClient):
    """A client of the engine at an address, as with `swiftchat --connect`."""

    def __init__(self, address: str, token_file: Path | None = None) -> None:
        self.engine = connect_engine(address, read_token(token_file, address))
        self.engine.start_session()
        super().__init__(EngineConfig(), Path(), self.engine)


@contextmanager
def serving(folder: Path, at: str, token_file: Path | None = None) -> Iterator[Listener]:
    """Serve the tiny model in `folder` at an address, from this process."""
    server = EngineServer()
    listener = Listener(Address.parse(at), token_file, server, "a/tiny", folder)
    listener.open()
    engine = tiny.engine(folder)
    server.publish(engine.info.to_wire())
    threading.Thread(target=server.run, args=(engine,), daemon=True).start()
    try:
        yield listener
    finally:
        listener.close()
        for terminal in list(server._terminals):
            terminal.close()


def chat_model_folder(folder: Path, **config: int) -> Path:
    """Make a tiny model for up to four ranks whose tokenizer has a token per byte."""
    tiny.make("llama-biases", folder, **WIDE | {"vocab_size": 258} | config)
    bytewise = fake_engine.make_folder(folder / "bytewise")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.move(bytewise / name, folder / name)
    shutil.rmtree(bytewise)
    return folder
