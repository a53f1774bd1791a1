"""`--lora` and `/lora`: what the engine is asked for, and errors that name what is wrong."""

from pathlib import Path
from typing import Any

import pytest

from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.model.adapters import Weighted, open_adapters
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.slash.adapters import lora
from swiftchat.chat.slash.state import ChatState
from swiftchat.errors import BadModelFile, UsageError
from tests.support import adapter_files, fake_engine

SHAPE = {
    key: adapter_files.CONFIG_JSON[key]
    for key in ("hidden_size", "intermediate_size", "num_attention_heads")
}


class Chat:
    def __init__(self, folder: Path, **options: Any) -> None:
        fake_engine.make_folder(folder, **SHAPE)
        self.engine = fake_engine.FakeEngine([{"text": "yes"}] * 9)
        config = ChatConfig(model=str(folder), **options)
        adapters = open_adapters(config, folder)
        self.model = ChatModel(folder, config, self.engine.start, adapters)  # type: ignore[arg-type]
        self.state: Any = type("State", (), {"chat_model": self.model})()

    def run(self, argument: str) -> None:
        state: ChatState = self.state
        lora(state, argument)

    def asked(self) -> list[tuple[str, float]]:
        """Ask for an answer; return the adapters of the request by the names of their folders."""
        conversation = Conversation()
        conversation.add("user", "Hi")
        list(self.model.answer(conversation, lambda _: None))
        tuning = self.engine.tunings[-1]
        return [] if tuning is None else [(Path(p).name, scale) for p, scale in tuning.adapters]


def test_adapters_of_options_and_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = (adapter_files.write_peft(tmp_path / name) for name in ("one", "two"))
    chat = Chat(tmp_path / "model", lora=(f"{one}=0.5",))
    assert chat.asked() == [("one", 0.5)]
    chat.run(f"load {two}")
    assert chat.asked() == [("one", 0.5), ("two", 1.0)]
    chat.run("use two=-2")
    assert chat.asked() == [("two", -2.0)]
    chat.run("off")
    assert chat.asked() == []
    capsys.readouterr()
    chat.run("use one two")
    assert capsys.readouterr().out == "* one  LoRA, rank 3\n* two  LoRA, rank 3\n"
    chat.run("load " + str(adapter_files.write_peft(tmp_path / "other" / "one")))
    assert chat.asked()[2:] == [("one", 1.0)] and "one-2" in chat.model.adapters.loaded


@pytest.mark.parametrize("argument", ["load", "use", "use three", "off now", "delete one"])
def test_wrong_arguments(argument: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        Chat(tmp_path).run(argument)


def test_a_wrong_adapter_changes_nothing(tmp_path: Path) -> None:
    chat = Chat(tmp_path / "model")
    wrong = adapter_files.write_peft(tmp_path / "a", settings={"peft_type": "IA3"})
    with pytest.raises(BadModelFile, match="IA3"):
        chat.run(f"load {wrong}")
    assert chat.asked() == []
    with pytest.raises(BadModelFile):
        Chat(tmp_path / "model", lora=(str(wrong),))


def test_scales(tmp_path: Path) -> None:
    odd = tmp_path / "a=3"
    odd.mkdir()
    assert Weighted.parse("a=0.5") == Weighted("a", 0.5)
    assert Weighted.parse("a=b") == Weighted("a=b", 1.0)
    assert Weighted.parse(str(odd)) == Weighted(str(odd), 1.0)
    for text in ("a=nan", "a=1e9", "", "=2"):
        with pytest.raises(UsageError):
            Weighted.parse(text)
    for options in ({"connect": "./socket"}, {"compared": ("b",)}):
        with pytest.raises(UsageError, match="--lora"):
            ChatConfig(lora=("a",), **options).check()
