"""`/compare`: both answers, the branch, and which models are loaded."""

import re
from pathlib import Path

import pytest

from swiftchat.errors import DeviceError, ModelNotFound, UsageError
from tests.chat.slash.test_commands import Chat
from tests.chat.slash.test_commands import chat as chat
from tests.support import fake_engine


@pytest.fixture(params=[True, False], ids=["both fit", "one fits"])
def fits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    fits: bool = request.param
    monkeypatch.setattr("swiftchat.chat.model.memory.fits_beside", lambda *args: fits)
    return fits


def test_the_other_answer_is_a_branch(chat: Chat, tmp_path: Path, fits: bool) -> None:
    other = fake_engine.make_folder(tmp_path / "other")
    chat.send("/set temperature 0.5")
    chat.send("q", "**One.**")
    old_model = chat.state.chat_model
    shown = chat.send(f"/compare {other}", "- Two.")
    plain = re.sub("\x1b\\[[?0-9;]*[A-Za-z]|\r", "", shown)
    assert plain.startswith("model\n\nOne.\n\nother\n\n") and "• Two.\n" in plain
    assert ("both models do not fit" in shown) == (not fits) and "/switch 2" in shown
    assert chat.engine.prompts[-1] == chat.engine.prompts[0]
    assert chat.engine.params[-1].temperature == 0.5
    for conversation in (chat.state.conversation, chat.stored()):
        assert [m.content for m in conversation.messages] == ["q", "**One.**"]
        assert [leaf.content for leaf in conversation.branches()] == ["**One.**", "- Two."]
        assert conversation.settings["model"] == str(old_model.path)
    assert chat.stored().branches()[1].model == str(other)
    assert chat.state.chat_model is old_model and not old_model.is_closed
    chat.send("q2", "Three.")
    assert "assistant\n**One.**<|im_end|>" in chat.engine.prompt_text()
    chat.send("/switch 2")
    assert chat.path() == ["q", "- Two."]


def test_both_models_stay_loaded_if_they_fit(chat: Chat, tmp_path: Path, fits: bool) -> None:
    other = fake_engine.make_folder(tmp_path / "other")
    chat.send("q", "One.")
    chat.send(f"/compare {other}", "Two.")
    chat.send(f"/compare {other}", "Three.")
    engine = chat.engine
    assert (engine.num_starts, engine.num_closes) == ((2, 0) if fits else (5, 4))
    assert (chat.state.compared is not None) == fits
    third = fake_engine.make_folder(tmp_path / "third")
    chat.send(f"/compare {third}", "Four.")
    assert engine.num_closes == (1 if fits else 6)
    chat.send(f"/model {other}")
    assert chat.state.compared is None


@pytest.mark.usefixtures("fits")
def test_a_failed_comparison_changes_nothing(chat: Chat, tmp_path: Path) -> None:
    other = fake_engine.make_folder(tmp_path / "other")
    chat.send("q", "One.")
    with pytest.raises(DeviceError):
        chat.send(f"/compare {other}", {"text": "", "error": "gone"})
    assert chat.path() == ["q", "One."] == [m.content for m in chat.stored().messages]
    assert not chat.state.chat_model.is_closed
    with pytest.raises(DeviceError):
        chat.send(f"/compare {other}", {"text": "Half", "error": "gone"})
    assert chat.path() == ["q", "One."]
    assert [leaf.content for leaf in chat.stored().branches()] == ["One.", "Half"]
    chat.send("q2", "Fine.")
    assert chat.path() == ["q", "One.", "q2", "Fine."]


def test_comparisons_that_are_refused(chat: Chat, tmp_path: Path) -> None:
    other = str(fake_engine.make_folder(tmp_path / "other"))
    for line in ("/compare", f"/compare {other}"):
        with pytest.raises(UsageError):
            chat.send(line)
    chat.send("q", "One.")
    with pytest.raises(UsageError, match="current model"):
        chat.send(f"/compare {chat.state.chat_model.path}")
    with pytest.raises(ModelNotFound):
        chat.send(f"/compare {tmp_path / 'none'}")
    assert chat.engine.num_starts == 1 and chat.engine.num_closes == 0
