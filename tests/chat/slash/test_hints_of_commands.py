"""What commands say about the way back, about unknown names and about parameters."""

from pathlib import Path

import pytest

from swiftchat.errors import UsageError
from tests.chat.slash.test_commands import Chat, context_bar
from tests.chat.slash.test_commands import chat as chat

SAME = "The same beginning of two answers, longer than a preview: "


def hint_of(chat: Chat, line: str) -> str:
    with pytest.raises(UsageError) as caught:
        chat.send(line)
    return caught.value.hint


def test_undo_says_once_how_to_go_back(chat: Chat) -> None:
    assert chat.send("/undo") == "took back 0 turns; 0 left\n"
    chat.send("one", "A")
    chat.send("two", "B")
    assert "hint: what /undo takes back stays" in chat.send("/undo")
    assert chat.send("/undo") == "took back 1 turn; 0 left\n"


def test_a_path_gets_the_hint_how_to_attach_it(chat: Chat, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("x")
    assert "hint: a path is sent as text; /read PATH" in chat.send(str(file), "A")
    assert "hint:" not in chat.send(str(file), "B") and chat.path()[-2] == str(file)
    assert "hint:" not in chat.send("//help", "C")


def test_branches_that_begin_alike_are_told_apart(chat: Chat) -> None:
    chat.send("q", f"{SAME}one")
    chat.send("/regen", f"{SAME}two")
    chat.send("/regen", SAME.strip())
    _, one, two, short = chat.send("/branches").splitlines()
    assert one.endswith("preview: one") and two.endswith("preview: two")
    assert short.endswith("a preview:")


def test_branches_of_equal_answers_show_their_beginning(chat: Chat) -> None:
    chat.send("q", SAME)
    chat.send("/regen", SAME)
    rows = chat.send("/branches").splitlines()
    assert all("assistant: The same beginning" in row for row in rows[1:]) and len(rows) == 3


def test_a_removed_system_prompt_is_called_removed(chat: Chat) -> None:
    assert chat.send("/system Be brief.") == "the system prompt is changed\n"
    assert chat.send('/system ""') == "the system prompt is removed\n"
    assert chat.send("/system") == "no system prompt is set\n"


def test_help_explains_parameters(chat: Chat) -> None:
    text = chat.send("/help temp")
    assert text.startswith("temperature: a number of at least 0\nRandomness")
    assert "/set temperature VALUE" in text and "--stop" in chat.send("/help stop")
    assert hint_of(chat, "/help temprature").startswith("did you mean /help temperature?")
    assert hint_of(chat, "/help nonsense") == "/help lists commands and topics"


def test_unknown_names_get_the_nearest_one_or_the_list(chat: Chat) -> None:
    assert hint_of(chat, "/set temprature 1").startswith("did you mean temperature?")
    assert hint_of(chat, "/set xyz 1") == "/set lists the parameters"
    assert "/sessions" in hint_of(chat, "/resume nothing")


def test_the_hint_of_a_wrong_argument_is_the_help_of_the_command(chat: Chat) -> None:
    assert hint_of(chat, "/think maybe") == "see /help /think"
    assert hint_of(chat, "/undo x") == "see /help /undo"


def test_compact_names_what_it_keeps(chat: Chat) -> None:
    chat.send("one", "A")
    assert "/compact 0 keeps none" in hint_of(chat, "/compact")


def test_the_bar_says_that_the_model_could_not_be_loaded(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(on_progress: object = None) -> None:
        raise UsageError("the context is too long")

    chat.send("one", "A")
    with monkeypatch.context() as patch:
        patch.setattr(chat.engine, "info", None)
        patch.setattr(chat.engine, "wait_ready", fail)
        assert "starting" in context_bar(chat)
        with pytest.raises(UsageError, match="too long"):
            chat.send("two")
        assert "not loaded; the next message tries it again" in context_bar(chat)
    chat.send("two", "B")
    assert "ctx" in context_bar(chat)


@pytest.mark.parametrize("name", ["theme", "editing-mode", "announce", "device"])
def test_set_says_where_an_option_of_the_start_belongs(chat: Chat, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        chat.send(f"/set {name} x")
    assert "is chosen when the program starts" in str(caught.value)
    assert f"swiftchat --{name} sets it once" in caught.value.hint
