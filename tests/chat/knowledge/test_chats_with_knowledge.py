"""Knowledge in one-shots and chats: what the model gets, what is shown, saved and repeated."""

import json
import shutil
from pathlib import Path

import pytest

from swiftchat.chat.history.store import SessionStore, sessions_path
from swiftchat.errors import UsageError
from tests.chat.slash.test_commands import Chat, chat
from tests.support import fake_engine, handbook
from tests.support.program import Program, assert_error

__all__ = ["chat"]
ENGINE = {"load_s": 0, "ctx_size_tokens": 4096}


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(fake_engine.make_folder(tmp_path / "model", max_position_embeddings=4096))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return handbook.write(tmp_path / "handbook")


def recorded(path: Path) -> str:
    return fake_engine.text_of(json.loads(path.read_text()))


def test_passages_precede_the_question_of_a_one_shot(
    program: Program, folder: Path, tmp_path: Path
) -> None:
    answer = {"text": "28 [people/holidays.md:1]", "records": str(tmp_path / "ids")}
    options = ("-p", "How many vacation days?", "--knowledge", str(folder))
    done = program.run(*options, answers=(ENGINE, answer))
    assert (done.returncode, done.stdout) == (0, b"28 [people/holidays.md:1]\n"), done.stderr
    told = done.stderr.decode().splitlines()
    assert told[0] == f"{folder}: 14 files are indexed; new: 14"
    assert told[1].startswith("knowledge of handbook: people/holidays.md:1")
    prompt = recorded(tmp_path / "ids")
    assert "[people/holidays.md:1]\n# Holidays\n\nYou have 28 days of vacation." in prompt
    assert prompt.index("28 days") < prompt.index("\n\nHow many vacation days?")


def test_a_conversation_that_goes_on_repeats_them_and_adds_only_new_ones(
    program: Program, folder: Path, tmp_path: Path
) -> None:
    first, second = ({"text": "Yes.", "records": str(tmp_path / str(n))} for n in range(2))
    program.run(
        "-p",
        "Vacation days?",
        "--knowledge",
        str(folder),
        answers=(
            ENGINE,
            first,
        ),
    )
    (folder / "people/holidays.md").write_text("There is no vacation any more.")
    options = ("-c", "-p", "Is a train or vacation paid?")
    done = program.run(*options, answers=(ENGINE, second))
    assert done.returncode == 0, done.stderr
    assert f"{folder}: 14 files are indexed; changed: people/holidays.md" in done.stderr.decode()
    before, after = recorded(tmp_path / "0"), recorded(tmp_path / "1")
    assert after.startswith(before)
    new = after.removeprefix(before)
    assert "There is no vacation any more." in new and "Trains are booked" in new
    assert "28 days" not in new
    without = {"text": "So.", "records": str(tmp_path / "2")}
    program.run("-c", "-p", "A train?", "--knowledge", "none", answers=(ENGINE, without))
    assert recorded(tmp_path / "2").endswith("user\nA train?<|im_end|>\n<|im_start|>assistant\n")
    program.run("-c", "-p", "A train?", "--knowledge", str(folder), answers=(ENGINE, "Yes."))
    shutil.rmtree(folder)
    done = program.run("-c", "-p", "And now?", answers=(ENGINE, "An answer."))
    assert (done.returncode, done.stdout) == (0, b"An answer.\n")
    assert "is not a folder any more" in done.stderr.decode()


def test_options_that_cannot_work(program: Program, folder: Path) -> None:
    done = program.run("-p", "Hi", "--knowledge", str(folder / "none"))
    assert_error(done, 2, "none is not a folder")
    done = program.run("-p", "Hi", "--knowledge-model", "any")
    assert_error(done, 2, "--knowledge-model is for --knowledge")
    done = program.run("-p", "zzz", "--knowledge", str(folder), answers=(ENGINE, "An answer."))
    assert done.stdout == b"An answer.\n" and "knowledge of" not in done.stderr.decode()


def test_the_share_of_the_context_is_bounded(
    program: Program, folder: Path, tmp_path: Path
) -> None:
    for tokens, most in ((300, 300), (4000, 1024)):  # a token is a byte
        answer = {"text": "So.", "records": str(tmp_path / "ids")}
        options = ("--knowledge", str(folder), "--knowledge-tokens", str(tokens))
        program.run("-p", "day train order token alert?", *options, answers=(ENGINE, answer))
        prompt = recorded(tmp_path / "ids")
        inside = prompt.partition("```\n")[2].partition("\n```\n(end of")[0]
        assert most - 250 < len(inside.encode()) <= most


def test_the_command_in_a_chat(chat: Chat, folder: Path) -> None:
    assert "no folder is used" in chat.send("/knowledge")
    shown = chat.send(f"/knowledge {folder}")
    assert f"{folder}: 14 files are indexed; new: 14" in shown
    assert f"knowledge of {folder}: 14 pieces of 14 files" in shown
    shown = chat.send("Where are coffee beans?", "In the cupboard.")
    assert "knowledge of handbook: office/kitchen.txt:1" in shown
    (message, _) = chat.path()
    assert message.startswith("knowledge of handbook:\n```\n")
    assert message.endswith("(end of knowledge of handbook)\n\nWhere are coffee beans?")
    assert "[knowledge of handbook, " in chat.send("/show all")
    assert chat.stored().title == "Where are coffee beans?"
    assert chat.stored().settings["knowledge"] == str(folder)
    chat.send("/regen", "Up there.")
    assert chat.path() == [message, "Up there."]
    assert chat.engine.prompts[-1] == chat.engine.prompts[-2]
    (folder / "office/kitchen.txt").unlink()
    shown = chat.send("Coffee beans, where?", "I do not know.")
    assert "13 files are indexed; removed: office/kitchen.txt" in shown
    assert chat.path()[2] == "Coffee beans, where?"
    assert "without knowledge" in chat.send("/knowledge none")
    chat.send("Any vacation?", "No.")
    assert chat.path()[4] == "Any vacation?" and "knowledge" not in chat.stored().settings
    with pytest.raises(UsageError, match="is not a folder"):
        chat.send("/knowledge /nowhere")


def test_an_edited_question_keeps_its_passages(chat: Chat, folder: Path) -> None:
    chat.send(f"/knowledge {folder}")
    chat.send("Where are coffee beans?", "In the cupboard.")
    chat.send("/edit")
    draft = chat.state.draft
    chat.send(f"{draft} Exactly?", "In the upper one.")
    assert chat.path() == [f"{draft} Exactly?", "In the upper one."]


def test_an_interrupted_index_returns_the_message(
    chat: Chat, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat.send(f"/knowledge {folder}")
    (folder / "new.md").write_text("new")

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(chat.state.status, "show", interrupt)
    with pytest.raises(KeyboardInterrupt):
        chat.send("Is there coffee?")
    assert chat.state.draft == "Is there coffee?" and chat.path() == []
    assert "stopped; what is indexed stays" in chat.send(f"/knowledge {folder}")


def test_resume_says_which_folder_a_conversation_used(chat: Chat, folder: Path) -> None:
    chat.send(f"/knowledge {folder}")
    chat.send("Where are coffee beans?", "In the cupboard.")
    chat.send("/knowledge none")
    chat.send("/clear")
    chat.send("Hello?", "Yes.")
    assert f"/knowledge {folder}" in chat.send(f"/resume {chat.other()}")
    with SessionStore(sessions_path(), print) as store:
        assert store.search("coffee")
