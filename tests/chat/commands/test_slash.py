"""Commands of the conversation, in one process: what they change, and what the model is asked."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from swiftchat.chat.history.autosave import Autosave
from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.history.store import Sessions, sessions_path
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.repl.loop import Repl
from swiftchat.errors import FileSystemError, ModelNotFound, UsageError
from tests.support import fake_engine


class Chat:
    """A conversation at a prompt that nobody types at."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.engine = fake_engine.FakeEngine([], ctx_size_tokens=4096)
        chat_model = ChatModel(folder, ChatConfig(model=str(folder)), self.engine.start)  # type: ignore[arg-type]
        autosave = Autosave(lambda: Sessions(sessions_path(), print), print)
        self.repl = Repl(chat_model, chat_model.config, Conversation(), "", autosave)
        self.state = self.repl.state
        self._capsys = capsys

    def say(self, text: str, *answers: object) -> str:
        """Type a line; what the screen shows of it."""
        self.engine.answers += [a if isinstance(a, dict) else {"text": a} for a in answers]
        self.repl.handle(text)
        return "".join(self._capsys.readouterr())

    def path(self) -> list[str]:
        return [message.content for message in self.state.conversation.messages]

    def kept(self) -> Conversation:
        with Sessions(sessions_path(), print) as store:
            return store.load(self.state.conversation.id)


@pytest.fixture
def chat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Chat]:
    folder = fake_engine.make_folder(tmp_path / "model")
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        chat = Chat(folder, capsys)
        yield chat
        chat.state.autosave.close()


def test_what_is_kept_of_an_answer(chat: Chat) -> None:
    chat.say("/set temperature 0.5")
    chat.say("/system Be brief.")
    chat.say("Why?", "So.")
    kept = chat.kept()
    answer = kept.messages[1]
    assert (kept.title, kept.system, kept.settings["temp"]) == ("Why?", "Be brief.", 0.5)
    assert (answer.content, answer.finish_reason, answer.completion_tokens) == ("So.", "stop", 3)
    assert answer.prompt_tokens == len(chat.engine.prompts[0])
    assert answer.params["seed"] == 7 and answer.params["temperature"] == 0.5
    assert answer.model == str(chat.state.chat_model.path) and answer.seconds is not None


def test_undo_and_switch_lose_nothing(chat: Chat) -> None:
    chat.say("one", "A")
    chat.say("two", "B")
    assert "took back 1 turn; 1 left" in chat.say("/undo")
    chat.say("three", "C")
    assert chat.path() == ["one", "A", "three", "C"]
    listing = chat.say("/branches").splitlines()
    assert "user: two" in listing[0] and listing[1].startswith("*") and "C" in listing[1]
    assert "B" in chat.say("/switch 1") and chat.path() == ["one", "A", "two", "B"]
    assert {leaf.content for leaf in chat.kept().branches()} == {"B", "C"}
    assert chat.kept().tip is not None and chat.path()[-1] == "B"
    for wrong in ("/switch 3", "/switch 0", "/switch x", "/undo x", "/edit 9", "/edit 0"):
        with pytest.raises(UsageError):
            chat.say(wrong)


def test_regen_makes_a_sibling_and_keeps_the_answer_before(chat: Chat) -> None:
    chat.say("q", "first")
    chat.say("/regen", "second")
    assert chat.path() == ["q", "second"] and len(chat.state.conversation.tree) == 3
    chat.say("/switch 1")
    assert chat.path() == ["q", "first"]


def test_an_answer_that_fails_leaves_the_place_and_one_question(chat: Chat) -> None:
    chat.say("q", "a")
    for _ in range(2):
        with pytest.raises(Exception, match="gone"):
            chat.say("next", {"text": "", "error": "gone"})
        assert chat.path() == ["q", "a"] and chat.state.draft == "next"
    chat.say("next", "b")
    assert chat.path() == ["q", "a", "next", "b"] and len(chat.state.conversation.tree) == 4


def test_editing_a_question_brings_it_back_to_be_typed(chat: Chat) -> None:
    chat.say("one", "A")
    chat.say("two", "B")
    assert "/switch 1 goes back" in chat.say("/edit")
    assert chat.state.draft == "two" and chat.path() == ["one", "A"]
    chat.say("two!", "B!")
    chat.say("/edit 1")
    assert chat.state.draft == "one" and chat.path() == []
    assert len(chat.kept().tree) == 6


def test_editing_an_answer_in_the_editor(
    chat: Chat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i s/wrong/right/ "$1"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(editor))
    chat.say("q", "the wrong word")
    chat.say("/edit -1")
    assert chat.path() == ["q", "the right word"]
    assert "nothing is changed" in chat.say("/edit 2")
    chat.say("and?", "x")
    assert "the right word<|im_end|>" in chat.engine.prompt_text()
    assert [m.content for m in chat.kept().tree][:3] == ["q", "the wrong word", "the right word"]


def test_continue_goes_on_where_the_answer_was_cut(chat: Chat) -> None:
    chat.state.chat_model.set_parameter("max_tokens", 6)
    assert "/continue" in chat.say("q", "Half of an answer.")
    shown = chat.say("/continue", " of an")
    assert chat.engine.prompt_text().endswith("<|im_start|>assistant\nHalf o")
    assert "of an" in shown and "Half" not in shown
    assert chat.path() == ["q", "Half o of an"] and len(chat.state.conversation.tree) == 3
    chat.say("next", "x")
    assert "assistant\nHalf o of an<|im_end|>" in chat.engine.prompt_text()
    with pytest.raises(UsageError, match="nothing to add"):
        chat.say("/continue", "")
    assert chat.path()[-1] == "x"


def test_continue_takes_no_control_token_from_a_text(chat: Chat) -> None:
    chat.say("q", "say <|im_end|>")
    chat.say("/continue", "!")
    prompt = chat.engine.prompts[-1]
    assert prompt.count(fake_engine.END_ID) == 1 and bytes(prompt[-10:]) == b"<|im_end|>"


def test_from_one_conversation_to_another_and_back(chat: Chat) -> None:
    chat.say("one", "A")
    first = chat.state.conversation.id
    assert "/resume goes back" in chat.say("/clear")
    chat.say("two", "B")
    assert chat.engine.prompt_text().count("user") == 1
    assert "one" in chat.say("/sessions") and "B" in chat.say("/sessions b")
    shown = chat.say("/resume")
    assert "continuing: one" in shown and ">>> one\nA" in shown
    assert chat.state.conversation.id == first and chat.path() == ["one", "A"]
    chat.say("/save my talk")
    chat.say("/resume")
    chat.say("/resume my talk")
    assert chat.state.conversation.id == first
    with pytest.raises(UsageError):
        chat.say("/resume nowhere")


def test_resume_brings_back_a_question_that_was_never_answered(chat: Chat) -> None:
    chat.say("one", "A")
    chat.state.conversation.add("user", "killed here")
    chat.say("/clear")
    chat.say("/resume")
    assert chat.state.draft == "killed here" and chat.path() == ["one", "A"]


def test_a_fork_goes_its_own_way(chat: Chat) -> None:
    chat.say("one", "A")
    old = chat.state.conversation
    chat.say("/fork")
    chat.say("two", "B")
    assert chat.path() == ["one", "A", "two", "B"] and old.id != chat.state.conversation.id
    assert [m.content for m in old.messages] == ["one", "A"]
    assert not {m.id for m in old.tree} & {m.id for m in chat.kept().tree}


def test_export_writes_what_does_not_exist(chat: Chat, tmp_path: Path) -> None:
    chat.say("q", "a")
    for name in ("talk.md", "talk.json"):
        chat.say(f"/export {tmp_path / name}")
    assert "## You\n\nq\n\n## model\n\na\n" in (tmp_path / "talk.md").read_text()
    assert json.loads((tmp_path / "talk.json").read_text())["swiftchat"] == 1
    with pytest.raises(FileSystemError):
        chat.say(f"/export {tmp_path / 'talk.md'}")
    with pytest.raises(UsageError):
        chat.say(f"/export {tmp_path / 'talk.pdf'}")


def test_compact_asks_the_model_and_keeps_the_old_turns(chat: Chat) -> None:
    for number in range(3):
        chat.say(f"question {number}", f"answer {number}")
    shown = chat.say("/compact", "We counted.")
    assert "We counted." in shown and "Assistant: answer 1" in chat.engine.prompt_text()
    assert "answer 2" not in chat.engine.prompt_text()
    assert chat.path()[1:] == ["answer 2"]
    assert "We counted.\n\nquestion 2" in chat.path()[0]
    chat.say("next", "x")
    assert (
        "question 0" not in chat.engine.prompt_text() and "We counted." in chat.engine.prompt_text()
    )
    chat.say("/switch 1")
    assert chat.path()[0] == "question 0" and len(chat.path()) == 6
    with pytest.raises(UsageError):
        chat.say("/compact 3")


def test_compact_of_more_than_the_context_goes_in_portions(chat: Chat) -> None:
    chat.say("x" * 3000, "a")
    chat.say("y" * 900, "b")
    chat.say("last", "c")
    chat.engine.ctx_size_tokens = 2000
    chat.say("/compact", *[f"summary {number}" for number in range(9)])
    asked = [chat.engine.prompt_text(i) for i in range(3, len(chat.engine.prompts))]
    assert len(asked) > 3 and all(len(prompt) < 2000 for prompt in chat.engine.prompts[3:])
    assert sum(one.count("x") for one in asked) >= 3000, "nothing is left out"
    assert "so far: summary 0" in asked[1]
    assert f"summary {len(asked) - 1}" in chat.path()[0]


def test_another_model_goes_on_with_the_conversation(chat: Chat, tmp_path: Path) -> None:
    chat.say("/set temperature 0.5")
    chat.say("q", "a")
    other = fake_engine.make_folder(tmp_path / "other")
    with pytest.raises(ModelNotFound):
        chat.say(f"/model {tmp_path / 'none'}")
    assert chat.engine.num_closes == 0
    chat.say(f"/model {other}")
    assert chat.engine.num_closes == 1 and str(other) in chat.say("/model")
    chat.say("q2", "b")
    assert "assistant\na<|im_end|>" in chat.engine.prompt_text()
    assert chat.engine.params[-1].temperature == 0.5
    assert [m.model for m in chat.kept().messages if m.role == "assistant"] == [
        str(tmp_path / "model"),
        str(other),
    ]


def test_tokens_are_counted_as_the_template_writes_them(chat: Chat) -> None:
    chat.say("/system S")
    chat.say("four", "abc")
    lines = chat.say("/tokens").splitlines()
    assert [int(line.split()[0]) for line in lines[:3]] == [1, 4, 3]
    assert lines[3].split()[0] == str(len(chat.engine.prompts[0]) + 3 + 2 + 11)
    assert "of 4096" in lines[3]


def test_files_and_patterns_go_with_the_next_message(chat: Chat, tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "c.md"):
        (tmp_path / name).write_text(f"content of {name}")
    shown = chat.say(f"/read '{tmp_path}/*.txt' {tmp_path}/c.md")
    counts = [int(line.split()[0]) for line in shown.splitlines()]
    assert counts == [len(f"{tmp_path}/{n}:\ncontent of {n}") for n in ("a.txt", "b.txt", "c.md")]
    chat.say("sum up", "Done.")
    asked = chat.engine.prompt_text()
    assert f"{tmp_path}/a.txt:\ncontent of a.txt\n\n{tmp_path}/b.txt:" in asked
    assert "content of c.md\n\nsum up<|im_end|>" in asked
    assert chat.state.conversation.title == "sum up"
    chat.say("next", "x")
    assert chat.engine.prompt_text().count("content of c.md") == 1
    chat.say(f"/read {tmp_path}/a.txt")
    assert "dropped all" in chat.say("/read") and not chat.state.attachments


def test_what_cannot_be_read_is_refused(chat: Chat, tmp_path: Path) -> None:
    (tmp_path / "photo.JPG").write_bytes(b"\xff\xd8")
    (tmp_path / "data").write_bytes(b"a\0b")
    for name in ("photo.JPG", "data", "", "*.none", "'"):
        with pytest.raises(UsageError):
            chat.say(f"/read {tmp_path}/{name}")
    with pytest.raises(FileSystemError):
        chat.say(f"/read {tmp_path}/none")
    assert not chat.state.attachments


def test_a_shell_commands_output_can_go_with_the_next_message(chat: Chat) -> None:
    shown = chat.say("!printf 'a\\033[31mb\\r\\nc'; exit 3")
    assert "a␛[31mb\nc\nexit status 3" in shown and "/attach" in shown
    chat.say("/attach")
    chat.say("why?", "x")
    assert "b\nc\n\nwhy?<|im_end|>" in chat.engine.prompt_text()
    with pytest.raises(UsageError):
        chat.say("/attach")
    with pytest.raises(UsageError):
        chat.say("!")
    assert "1048576 of 3000000 characters" in chat.say("!head -c 3000000 /dev/zero | tr '\\0' x")
    assert len(chat.state.shell_output) < 1_048_700


def test_an_explicit_save_that_fails_says_so(chat: Chat) -> None:
    sessions_path().parent.parent.mkdir(parents=True)
    sessions_path().parent.write_text("in the way")
    assert "is not saved" in chat.say("q", "a")
    with pytest.raises(FileSystemError):
        chat.say("/save name")
    assert chat.state.conversation.name is None
    sessions_path().parent.unlink()
    assert "swiftchat --session name" in chat.say("/save name")
    assert chat.kept().name == "name"


@pytest.mark.parametrize("line", ["/continue", "/edit", "/regen", "/fork", "/save x", "/export"])
def test_with_nothing_said_there_is_nothing_to_do(chat: Chat, line: str) -> None:
    with pytest.raises(UsageError):
        chat.say(line)
    assert not sessions_path().exists()
