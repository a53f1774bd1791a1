"""swiftchat in the process of the test, with the fake engine in place of a model."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from swiftchat.chat import cli
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.errors import SwiftchatError
from tests.support import fake_engine


class Program:
    """`swiftchat` with the fake engine in place of a model."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.engine = fake_engine.FakeEngine(["An answer."])

        def chat_model(path: Path, config: object, **_: object) -> ChatModel:
            return ChatModel(path, config, self.engine.start)  # type: ignore[arg-type]

        monkeypatch.setattr("swiftchat.chat.model.chat_model.ChatModel", chat_model)

    def run(self, *args: str, stdin: str | bytes = "") -> Result:
        return CliRunner().invoke(
            cli.swiftchat, ["-m", str(self.folder), *args], input=stdin, standalone_mode=True
        )


def failure(program: Program, *args: str, stdin: str = "") -> SwiftchatError:
    result = CliRunner().invoke(
        cli.swiftchat, ["-m", str(program.folder), *args], input=stdin, standalone_mode=False
    )
    assert isinstance(result.exception, SwiftchatError), result.exception
    return result.exception
