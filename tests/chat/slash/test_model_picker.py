"""`/model` without a name: the list of models in a terminal."""

from collections.abc import Callable

from swiftchat.weights.store import default_store
from tests.support import fake_engine
from tests.support.terminal import Terminal


def test_model_without_a_name_lets_the_user_pick_one(chat: Callable[..., Terminal]) -> None:
    folder = fake_engine.make_folder(default_store().root / "small-one")
    (folder / "model.safetensors").write_bytes(b"x")
    terminal = chat("one", "two", columns=100)
    terminal.type("/model\r")
    terminal.wait_for("Esc keeps this one")
    terminal.type_now("no such model")
    terminal.wait_for("filter: no such model")
    terminal.type_now("\r\x1b")  # Enter takes nothing
    terminal.wait_for(lambda screen: terminal.is_at_prompt)
    assert "continues with" not in terminal.look()
    terminal.type("/model\r")
    terminal.wait_for("> small-one")
    terminal.type_now("\r")
    terminal.wait_for("the conversation continues with small-one")
    terminal.type("question\r")
    terminal.wait_for("one")
