"""Messages without an answer leave the conversation, its title and the engine as they were."""

import pytest

from swiftchat.chat.repl.input import InputLine
from swiftchat.engine.api.protocol import EngineInfo
from swiftchat.errors import DeviceError, OutOfMemory, UsageError
from tests.chat.slash.test_commands import Chat, chat
from tests.support import fake_engine

__all__ = ["chat"]

FAILED = {"text": "", "error": "gone"}


def test_a_failed_message_is_no_title(chat: Chat) -> None:
    with pytest.raises(DeviceError):
        chat.send("A misspelled qestion", FAILED)
    chat.send("What do penguins eat?", "Fish.")
    assert chat.stored().title == "What do penguins eat?"
    with pytest.raises(DeviceError):
        chat.send("More?", FAILED)
    chat.send("And seals?", "Fish.")
    assert chat.stored().title == "What do penguins eat?"


def test_an_edit_that_is_given_up_changes_nothing(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the input line, and another command."""
    chat.send("one", "A")
    chat.send("/edit 1")

    def interrupt(*_: object, **__: object) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(InputLine, "prompt", interrupt)
        with pytest.raises(KeyboardInterrupt):
            chat.repl._read()
    assert chat.path() == chat_path(chat) == ["one", "A"]
    chat.send("two", "B")
    assert chat.path() == ["one", "A", "two", "B"]
    chat.send("/edit 1")
    chat.send("/tokens")
    chat.send("three", "C")
    assert chat.path() == ["one", "A", "two", "B", "three", "C"]


def chat_path(chat: Chat) -> list[str]:
    return [message.content for message in chat.stored().messages]


def test_an_edit_without_an_answer_is_edited_again(chat: Chat) -> None:
    chat.send("one", "A")
    chat.send("/edit")
    with pytest.raises(DeviceError):
        chat.send("one!", FAILED)
    assert chat.path() == chat_path(chat) == ["one", "A"] and chat.state.draft == "one!"
    chat.send("one!", "A!")
    assert chat.path() == ["one!", "A!"]


def test_a_context_longer_than_the_models_is_refused(chat: Chat) -> None:
    before = chat.state.chat_model.config
    with pytest.raises(UsageError, match="ctx_size must be at most 4096") as caught:
        chat.send("/set ctx_size 99999")
    assert caught.value.hint == "/set ctx_size 4096"
    assert chat.state.chat_model.config == before and chat.engine.num_starts == 1
    chat.send(caught.value.hint)
    assert chat.engine.config.ctx_size_tokens == 4096


def test_an_option_that_the_engine_refuses_is_taken_back(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat.send("one", "A")
    ready = fake_engine.FakeEngine.wait_ready

    def wait_ready(engine: fake_engine.FakeEngine, on_progress: object = None) -> EngineInfo:
        if engine.config.ctx_size_tokens == 4000:
            engine.info = None
            raise OutOfMemory("4000 tokens do not fit")
        return ready(engine, on_progress)

    monkeypatch.setattr(fake_engine.FakeEngine, "wait_ready", wait_ready)
    chat.send("/set ctx_size 4000")
    with pytest.raises(OutOfMemory) as caught:
        chat.send("two")
    assert "those before /set" in caught.value.hint and chat.state.draft == "two"
    chat.send("two", "B")
    assert chat.path() == ["one", "A", "two", "B"]
    assert chat.engine.config.ctx_size_tokens is None
