"""Slash commands: their output, the conversation afterwards, and the prompts of the model."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from swiftchat.chat.attachments.attachment import Attachment
from swiftchat.chat.history.autosave import Autosave
from swiftchat.chat.history.conversation import SHORT_ID, Conversation, title_of
from swiftchat.chat.history.store import SessionStore, sessions_path
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.repl.input import InputLine
from swiftchat.chat.repl.loop import Repl
from swiftchat.chat.repl.toolbar import toolbar
from swiftchat.chat.slash.registry import BY_NAME, COMMANDS, is_command
from swiftchat.errors import FileSystemError, ModelNotFound, UsageError
from swiftchat.weights.store import Store
from tests.support import fake_engine
from tests.support.gguf import tiny as tiny_gguf
from tests.support.tiny_llama import tiny_llama


class Chat:
    """A chat whose input lines come from `send`."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.engine = fake_engine.FakeEngine([], ctx_size_tokens=4096)
        chat_model = ChatModel(folder, ChatConfig(model=str(folder)), self.engine.start)  # type: ignore[arg-type]
        autosave = Autosave(lambda: SessionStore(sessions_path(), print), print)
        self.repl = Repl(chat_model, chat_model.config, Conversation(), (), autosave)
        self.state = self.repl.state
        self._capsys = capsys

    def send(self, text: str, *answers: object) -> str:
        """Handle an input line and return the output."""
        self.engine.answers += [a if isinstance(a, dict) else {"text": a} for a in answers]
        self.repl.handle(text)
        return "".join(self._capsys.readouterr())

    def path(self) -> list[str]:
        return [message.content for message in self.state.conversation.messages]

    def other(self) -> str:
        """Return the id of the last chat but this one."""
        rows = self.state.autosave.store.recent(2)
        return next(row["id"] for row in rows if row["id"] != self.state.conversation.id)

    def stored(self) -> Conversation:
        with SessionStore(sessions_path(), print) as store:
            return store.load(self.state.conversation.id)


@pytest.fixture
def chat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Chat]:
    folder = fake_engine.make_folder(tmp_path / "model", max_position_embeddings=4096)
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        chat = Chat(folder, capsys)
        yield chat
        chat.state.autosave.close()


def test_an_answer_is_saved_with_its_metadata(chat: Chat) -> None:
    chat.send("/set temperature 0.5")
    chat.send("/system Be brief.")
    chat.send("Why?", "So.")
    stored = chat.stored()
    answer = stored.messages[1]
    assert (stored.title, stored.system, stored.settings["temperature"]) == (
        "Why?",
        "Be brief.",
        0.5,
    )
    assert (answer.content, answer.finish_reason, answer.completion_tokens) == ("So.", "stop", 3)
    assert answer.prompt_tokens == len(chat.engine.prompts[0])
    assert answer.params["seed"] == 7 and answer.params["temperature"] == 0.5
    assert answer.model == str(chat.state.chat_model.path) and answer.seconds is not None


def test_a_sliding_context_is_set_and_told(chat: Chat) -> None:
    assert chat.send("/set overflow sliding") == "overflow = sliding\n"
    assert chat.send("/set num_keep 5") == "overflow_keep = 5\n"
    shown = chat.send("Why?", {"text": "So.", "dropped": 40})
    assert "the context was full: 40 tokens in its middle were dropped" in shown
    params = chat.engine.params[-1]
    assert (params.overflow, params.overflow_keep) == ("sliding", 5)
    assert chat.stored().settings["overflow"] == "sliding"
    chat.send("/set overflow default")
    assert "dropped" not in chat.send("Why?", "So.")
    assert chat.engine.params[-1].overflow == "error"


def test_undo_and_switch_keep_all_messages(chat: Chat) -> None:
    chat.send("one", "A")
    chat.send("two", "B")
    assert "took back 1 turn; 1 left" in chat.send("/undo")
    chat.send("three", "C")
    assert chat.path() == ["one", "A", "three", "C"]
    listing = chat.send("/branches").splitlines()
    assert listing == [
        "*     user: one  (2 messages)",
        "   1    1 of 2  user: two  (2 messages)",
        "*  2    2 of 2  user: three  (2 messages)",
    ]
    assert "B" in chat.send("/switch 1") and chat.path() == ["one", "A", "two", "B"]
    assert {leaf.content for leaf in chat.stored().branches()} == {"B", "C"}
    assert chat.stored().tip is not None and chat.path()[-1] == "B"
    for wrong in ("/switch 3", "/switch 0", "/switch x", "/undo x", "/edit 9", "/edit 0"):
        with pytest.raises(UsageError):
            chat.send(wrong)


def test_regen_adds_a_sibling_of_the_old_answer(chat: Chat) -> None:
    chat.send("q", "first")
    chat.send("/regen", "second")
    assert chat.path() == ["q", "second"] and len(chat.state.conversation.tree) == 3
    chat.send("/switch 1")
    assert chat.path() == ["q", "first"]


def test_a_failed_answer_restores_the_tip_and_the_draft(chat: Chat) -> None:
    chat.send("q", "a")
    for _ in range(2):
        with pytest.raises(Exception, match="gone"):
            chat.send("next", {"text": "", "error": "gone"})
        assert chat.path() == ["q", "a"] and chat.state.draft == "next"
    chat.send("next", "b")
    assert chat.path() == ["q", "a", "next", "b"] and len(chat.state.conversation.tree) == 4


def test_edit_of_a_question_makes_it_the_draft(chat: Chat) -> None:
    chat.send("one", "A")
    chat.send("two", "B")
    assert "/switch 1 goes back" in chat.send("/edit")
    assert chat.state.draft == "two" and chat.path() == ["one", "A", "two", "B"]
    chat.send("two!", "B!")
    assert chat.path() == ["one", "A", "two!", "B!"]
    chat.send("/edit 1")
    assert chat.state.draft == "one"
    chat.send("one!", "A!")
    assert chat.path() == ["one!", "A!"]
    assert len(chat.stored().tree) == 8


def test_edit_of_an_answer_opens_the_editor(
    chat: Chat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i s/wrong/right/ "$1"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(editor))
    chat.send("q", "the wrong word")
    chat.send("/edit -1")
    assert chat.path() == ["q", "the right word"]
    assert "nothing is changed" in chat.send("/edit 2")
    chat.send("and?", "x")
    assert "the right word<|im_end|>" in chat.engine.prompt_text()
    assert [m.content for m in chat.stored().tree][:3] == ["q", "the wrong word", "the right word"]


def test_continue_extends_a_cut_off_answer(chat: Chat) -> None:
    chat.state.chat_model.set_parameter("max_tokens", 6)
    assert "/continue" in chat.send("q", "Half of an answer.")
    shown = chat.send("/continue", " of an")
    assert chat.engine.prompt_text().endswith("<|im_start|>assistant\nHalf o")
    assert "of an" in shown and "Half" not in shown
    assert chat.path() == ["q", "Half o of an"] and len(chat.state.conversation.tree) == 3
    chat.send("next", "x")
    assert "assistant\nHalf o of an<|im_end|>" in chat.engine.prompt_text()
    with pytest.raises(UsageError, match="the model added no text"):
        chat.send("/continue", "")
    assert chat.path()[-1] == "x"


def test_continue_encodes_control_tokens_in_text_as_text(chat: Chat) -> None:
    chat.send("q", "say <|im_end|>")
    chat.send("/continue", "!")
    prompt = chat.engine.prompts[-1]
    assert prompt.count(fake_engine.END_ID) == 1 and bytes(prompt[-10:]) == b"<|im_end|>"


def test_clear_and_resume_change_the_conversation(chat: Chat) -> None:
    chat.send("one", "A")
    first = chat.state.conversation.id
    assert "/resume goes back" in chat.send("/clear")
    chat.send("two", "B")
    assert chat.engine.prompt_text().count("user") == 1
    assert "one" in chat.send("/sessions") and "B" in chat.send("/sessions b")
    listed = chat.send("/resume")  # not at a terminal: a plain list
    assert first[:SHORT_ID] in listed and chat.path() == ["two", "B"]
    shown = chat.send(f"/resume {chat.other()}")
    assert "continuing: one" in shown and ">>> one\x1b[0m\n\nA" in shown
    assert chat.state.conversation.id == first and chat.path() == ["one", "A"]
    chat.send("/save my talk")
    chat.send(f"/resume {chat.other()}")
    chat.send("/resume my talk")
    assert chat.state.conversation.id == first
    with pytest.raises(UsageError):
        chat.send("/resume nowhere")


def test_clear_offers_to_go_back_only_to_what_was_saved(chat: Chat) -> None:
    assert chat.send("/clear") == "a new conversation\n"
    chat.send("one", "A")
    assert "/resume goes back" in chat.send("/clear")
    chat.state.autosave.close()
    chat.state.autosave = Autosave(None, print)
    chat.send("two", "B")
    assert chat.send("/clear") == "a new conversation\n"


def test_resume_makes_an_unanswered_question_the_draft(chat: Chat) -> None:
    chat.send("one", "A")
    chat.state.conversation.add("user", "killed here")
    chat.send("/clear")
    chat.send(f"/resume {chat.other()}")
    assert chat.state.draft == "killed here" and chat.path() == ["one", "A"]


def test_fork_continues_in_a_copy(chat: Chat) -> None:
    chat.send("one", "A")
    old = chat.state.conversation
    chat.send("/fork")
    chat.send("two", "B")
    assert chat.path() == ["one", "A", "two", "B"] and old.id != chat.state.conversation.id
    assert [m.content for m in old.messages] == ["one", "A"]
    assert not {m.id for m in old.tree} & {m.id for m in chat.stored().tree}


def test_export_writes_only_new_files(chat: Chat, tmp_path: Path) -> None:
    chat.send("q", "a")
    for name in ("talk.md", "talk.json", "talk.html"):
        chat.send(f"/export {tmp_path / name}")
    assert "## You\n\nq\n\n## model\n\na\n" in (tmp_path / "talk.md").read_text()
    assert json.loads((tmp_path / "talk.json").read_text())["swiftchat"] == 1
    with pytest.raises(FileSystemError):
        chat.send(f"/export {tmp_path / 'talk.md'}")
    with pytest.raises(UsageError):
        chat.send(f"/export {tmp_path / 'talk.pdf'}")


def test_compact_replaces_old_turns_by_a_summary(chat: Chat) -> None:
    for number in range(3):
        chat.send(f"question {number}", f"answer {number}")
    shown = chat.send("/compact", "We counted.")
    assert "We counted." in shown and "Assistant: answer 1" in chat.engine.prompt_text()
    assert "answer 2" not in chat.engine.prompt_text()
    assert chat.path()[1:] == ["answer 2"]
    assert "We counted.\n\nquestion 2" in chat.path()[0]
    chat.send("next", "x")
    assert (
        "question 0" not in chat.engine.prompt_text() and "We counted." in chat.engine.prompt_text()
    )
    chat.send("/switch 1")
    assert chat.path()[0] == "question 0" and len(chat.path()) == 6
    with pytest.raises(UsageError):
        chat.send("/compact 3")


def test_compact_writes_a_text_whatever_the_format_of_answers_is(chat: Chat) -> None:
    chat.send("question", "answer")
    chat.state.chat_model.tools = tools = [{"type": "function"}]
    chat.send("/compact 0", "A summary.")
    assert chat.state.chat_model.tools is tools and "A summary." in chat.path()[0]
    chat.state.chat_model.tools = []
    chat.send("/schema {}")
    chat.send("more", "{}")
    chat.send("/compact 0", "Another summary.")
    chat.send("last", "{}")
    constraints = [constraint is not None for constraint in chat.engine.constraints]
    assert constraints == [False, False, True, False, True]


def test_compact_summarizes_long_conversations_in_portions(chat: Chat) -> None:
    chat.send("x" * 3000, "a")
    chat.send("y" * 900, "b")
    chat.send("last", "c")
    chat.engine.ctx_size_tokens = 2000
    chat.send("/compact", *[f"summary {number}" for number in range(9)])
    prompts = [chat.engine.prompt_text(i) for i in range(3, len(chat.engine.prompts))]
    assert len(prompts) > 3 and all(len(prompt) < 2000 for prompt in chat.engine.prompts[3:])
    assert sum(prompt.count("x") for prompt in prompts) >= 3000, (
        "all characters are in the portions"
    )
    assert "so far: summary 0" in prompts[1]
    assert f"summary {len(prompts) - 1}" in chat.path()[0]


def test_model_switches_within_the_conversation(chat: Chat, tmp_path: Path) -> None:
    chat.send("/set temperature 0.5")
    chat.send("q", "a")
    other = fake_engine.make_folder(tmp_path / "other")
    with pytest.raises(ModelNotFound):
        chat.send(f"/model {tmp_path / 'none'}")
    assert chat.engine.num_closes == 0
    chat.send(f"/model {other}")
    assert chat.engine.num_closes == 1 and str(other) in chat.send("/model")
    tip = chat.state.conversation.tip  # counted anew: the bar shows the new model's tokens
    assert tip is not None and tip.completion_tokens == 0 and tip.prompt_tokens
    chat.send("q2", "b")
    assert "assistant\na<|im_end|>" in chat.engine.prompt_text()
    assert chat.engine.params[-1].temperature == 0.5
    assert [m.model for m in chat.stored().messages if m.role == "assistant"] == [
        str(tmp_path / "model"),
        str(other),
    ]


def test_tokens_counts_messages_and_template(chat: Chat) -> None:
    chat.send("/system S")
    chat.send("four", "abc")
    lines = chat.send("/tokens").splitlines()
    assert [int(line.split()[0]) for line in lines[:3]] == [1, 4, 3]
    assert lines[3].split()[0] == str(len(chat.engine.prompts[0]) + 3 + 2 + 11)
    assert "of 4096" in lines[3]


def test_read_attaches_files_and_patterns(chat: Chat, tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "c.md"):
        (tmp_path / name).write_text(f"content of {name}")
    shown = chat.send(f"/read '{tmp_path}/*.txt' {tmp_path}/c.md")
    counts = [int(line.split()[0]) for line in shown.splitlines()]
    names = ("a.txt", "b.txt", "c.md")
    fenced = [Attachment(f"{tmp_path}/{n}", f"content of {n}").fenced for n in names]
    assert counts == list(map(len, fenced))
    chat.send("sum up", "Done.")
    prompt = chat.engine.prompt_text()
    assert "\n\n".join([*fenced, "sum up<|im_end|>"]) in prompt
    assert chat.state.conversation.title == "sum up"
    chat.send("next", "x")
    assert chat.engine.prompt_text().count("content of c.md") == 1
    chat.send(f"/read {tmp_path}/a.txt")
    assert "nothing" not in chat.send(f"/attach {tmp_path}/a.txt") and chat.state.attachments
    for command in ("/read", "/attach"):
        listed = chat.send(command)
        assert f"{tmp_path}/a.txt" in listed and "/attach none" in listed
    assert chat.send("/attach none") == "dropped 2 attachments of the next message\n"
    assert not chat.state.attachments and "nothing is attached" in chat.send("/read")
    chat.send("again", "x")
    assert chat.engine.prompt_text().count("content of a.txt") == 1


def test_an_attachment_larger_than_the_context_is_refused(chat: Chat, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("x" * 4096)
    (tmp_path / "half.txt").write_text("y" * 2000)
    chat.send("hello", "x")
    size = len(Attachment(f"{tmp_path}/long.txt", "x" * 4096).fenced)
    with pytest.raises(UsageError, match=f"long.txt has {size} tokens, and the context 4096"):
        chat.send(f"/read {tmp_path}/long.txt")
    chat.send(f"/read {tmp_path}/half.txt")
    with pytest.raises(UsageError, match="other attachments 2") as caught:
        chat.send(f"/read {tmp_path}/half.txt {tmp_path}/half.txt")
    assert "/attach none" in caught.value.hint and len(chat.state.attachments) == 1
    chat.send("!head -c 5000 /dev/zero | tr '\\0' x")
    with pytest.raises(UsageError, match="tokens"):
        chat.send("/attach")
    assert chat.state.shell_output, "refused output can be attached after /attach none"


def test_read_rejects_missing_and_binary_files(chat: Chat, tmp_path: Path) -> None:
    (tmp_path / "photo.JPG").write_bytes(b"\xff\xd8")
    (tmp_path / "data").write_bytes(b"a\0b")
    for name in ("photo.JPG", "data", "*.none", "'"):
        with pytest.raises(UsageError):
            chat.send(f"/read {tmp_path}/{name}")
    with pytest.raises(FileSystemError):
        chat.send(f"/read {tmp_path}/none")
    assert not chat.state.attachments


def test_shell_output_can_be_attached(chat: Chat) -> None:
    shown = chat.send("!printf 'a\\033[31mb\\r\\nc'; exit 3")
    assert "a\x1b[31mb\r\nc\nexit status 3" in shown and "/attach" in shown
    chat.send("/attach")
    chat.send("why?", "x")
    prompt = chat.engine.prompt_text()
    assert prompt.count("$ printf") == 2 and "ab\nc\n```\n(end of $ printf" in prompt
    assert "nothing is attached" in chat.send("/attach")
    for wrong in ("!", "/attach **/none.x"):
        with pytest.raises(UsageError):
            chat.send(wrong)
    assert "1048576 of 3000000 characters" in chat.send("!head -c 3000000 /dev/zero | tr '\\0' x")
    assert chat.state.shell_output is not None
    assert len(chat.state.shell_output.text) < 1_048_700


def test_a_failed_save_raises_an_error(chat: Chat) -> None:
    sessions_path().parent.parent.mkdir(parents=True)
    sessions_path().parent.write_text("in the way")
    assert "is not saved" in chat.send("q", "a")
    with pytest.raises(FileSystemError):
        chat.send("/save name")
    assert chat.state.conversation.name is None
    sessions_path().parent.unlink()
    assert "swiftchat --session name" in chat.send("/save name")
    assert chat.stored().name == "name"


@pytest.mark.parametrize("line", ["/continue", "/edit", "/regen", "/fork", "/save x", "/export"])
def test_commands_that_need_a_message_raise_an_error(chat: Chat, line: str) -> None:
    with pytest.raises(UsageError):
        chat.send(line)
    assert not sessions_path().exists()


def test_show_reprints_the_conversation_rendered(chat: Chat) -> None:
    with pytest.raises(UsageError, match="no messages"):
        chat.send("/show")
    chat.send("one", "**A**")
    chat.send("two", "\n\n".join(f"line {i}" for i in range(300)))
    chat.send("three", "C")
    shown = chat.send("/show all")
    assert ">>> one\x1b[0m\n\n" in shown and "\nC\n" in shown and "**" not in shown
    assert shown.count("line ") == 300
    shown = chat.send("/show")
    assert shown.startswith("\x1b[1;36m>>> three\x1b[0m\n\nC\n") and "/show all" in shown
    assert chat.send("/show 1") == "\x1b[1;36m>>> three\x1b[0m\n\nC\n\n"
    assert chat.send("/show 2").startswith("\x1b[1;36m>>> two\x1b[0m\n\nline 0\n")
    assert "top_k" in chat.send("/show parameters")
    with pytest.raises(UsageError, match="'0'"):
        chat.send("/show 0")


def test_resume_shows_the_last_turns_rendered(chat: Chat) -> None:
    chat.send("one", "- **A**")
    chat.send("two", "```\nB\n```")
    chat.send("/new")
    shown = chat.send(f"/resume {chat.other()}")
    assert shown.startswith("continuing: one (4 messages)\n\x1b[1;36m>>> one\x1b[0m\n\n• ")
    assert "**" not in shown and "```" not in shown and ">>> two\x1b[0m\n\n" in shown


def test_help_lists_all_commands_and_explains_one(chat: Chat) -> None:
    listing = chat.send("/help")
    assert all(command.usage in listing for command in COMMANDS) and "Ctrl-X Ctrl-E" in listing
    assert chat.send("/help /retry") == chat.send("/help regen")
    assert "frequency_penalty" in chat.send("/help set")
    with pytest.raises(UsageError, match="no help on"):
        chat.send("/help sett")


def test_command_names_are_unique() -> None:
    assert len(BY_NAME) == sum(1 + len(command.aliases) for command in COMMANDS)
    assert all(command.summary for command in COMMANDS)


def context_bar(chat: Chat, columns: int = 200) -> str:
    return "".join(text for _, text, *_ in toolbar(chat.state, columns))


def test_the_context_bar_follows_the_conversation(chat: Chat) -> None:
    chat.send("one", "A")
    first = len(chat.engine.prompts[-1]) + 1
    chat.send("two", "BB")
    second = len(chat.engine.prompts[-1]) + 2
    assert f"ctx {second}/4.1k" in context_bar(chat)
    chat.send("/undo")
    assert f"ctx {first}/4.1k" in context_bar(chat)
    old = chat.state.conversation.id
    chat.send("/clear")
    assert "ctx 0/4.1k" in context_bar(chat)
    assert context_bar(chat).startswith(f" {chat.state.chat_model.name} · ctx ")
    assert context_bar(chat, columns=20).startswith(" ctx 0/4.1k (0 %)")
    chat.send(f"/resume {old}")
    assert f"ctx {first}/4.1k" in context_bar(chat)
    chat.send("/switch 1")
    assert f"ctx {second}/4.1k" in context_bar(chat)
    chat.state.open(chat.stored())  # as with -c
    assert f"ctx {second}/4.1k" in context_bar(chat)


def test_the_context_bar_has_the_branch_and_the_attachments(chat: Chat, tmp_path: Path) -> None:
    chat.send("one", "A")
    assert "branch" not in context_bar(chat) and "attachment" not in context_bar(chat)
    chat.send("/regen", "B")
    assert " · branch 2/2 · " in context_bar(chat)
    (tmp_path / "a.txt").write_text("a")
    chat.send(f"/read {tmp_path / 'a.txt'}")
    assert " · branch 2/2 · 1 attachment · " in context_bar(chat)


def test_a_block_of_quotes_is_no_title(chat: Chat) -> None:
    chat.send('"""\nfirst line\nsecond\n"""', "A")
    assert chat.state.conversation.title == "first line"
    assert title_of('"""\n\ntext') == "text" and title_of("```python\nx") == "```python"
    assert title_of("???") == "???" and title_of("  \n") == ""


def test_printed_commands_can_be_copied(chat: Chat, tmp_path: Path) -> None:
    chat.send("one", "A")
    printed = chat.send("/save it's a trip; rm -rf").removeprefix("saved; ")
    words = shlex.split(printed.partition(" continues it")[0])
    assert words == ["swiftchat", "--session", "it's a trip; rm -rf"]
    for row in chat.send("/sessions").splitlines():
        assert len(row.split("\t")[1]) == SHORT_ID, "the id has no mark"
    assert "it's a trip" in chat.send("/sessions TRIP")
    assert "no conversation" in chat.send("/sessions nothing-of-this")
    file = tmp_path / "talk.md"
    chat.send(f"/export {file}")
    with pytest.raises(FileSystemError) as caught:
        chat.send(f"/export {file}")
    assert "--force" in caught.value.hint
    chat.send(f"/export --force {file}")
    (tmp_path / "a folder").mkdir()
    with pytest.raises(UsageError) as caught_usage:
        chat.send(f"/read '{tmp_path}/a folder'")
    assert shlex.split(caught_usage.value.hint)[0] == f"{tmp_path}/a folder/*"


@pytest.mark.parametrize(
    "text",
    [
        "/clear cache before deploy\nthen run make\nand tell me why it fails",
        "/exit\ncode 127",
        "!rm -rf build\nis what I ran",
        "  /bye\n  and more",
        "//bye",
    ],
)
def test_several_lines_are_a_message(text: str) -> None:
    assert not is_command(text)
    assert is_command("/clear") and is_command("/bye\n") and is_command("!ls")


def test_a_command_without_arguments_does_not_run_with_one(chat: Chat) -> None:
    with pytest.raises(UsageError, match="/exit takes no argument") as raised:
        chat.send("/exit code 127 means what?")
    chat.send(raised.value.hint.partition(": ")[2], "That it was not found.")
    assert chat.path() == ["/exit code 127 means what?", "That it was not found."]
    assert chat.repl.handle("/exit") is False


def test_models_marks_the_gguf_file_that_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs is a directory of small files made from it."""
    store = Store(tmp_path / "models", tmp_path / "cache", tmp_path / "hub")
    monkeypatch.setattr("swiftchat.weights.store.default_store", lambda: store)
    snapshot = tmp_path / "hub" / "models--owner--model" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    for kind in ("Q4_K_M", "Q8_0"):
        tiny_gguf.write(snapshot / f"m-{kind}.gguf", tiny_llama())
    chat = Chat(store.resolve("owner/model:Q8_0"), capsys)
    lines = [line.rpartition("  ")[0] for line in chat.send("/models").splitlines()]
    assert lines == ["  owner/model:Q4_K_M", "* owner/model:Q8_0"]


def test_attachments_are_folded_where_a_message_is_shown(chat: Chat, tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("secret\n" * 40)
    chat.send(f"/read {file}")
    chat.send("explain", "It is a list.")
    for command in ("/show", "/branches"):
        shown = chat.send(command)
        assert "secret" not in shown and "[a.py, 40 lines]" in shown
    chat.send("/edit 1")
    line = chat.repl._prompt
    assert isinstance(line, InputLine)
    short = line._pastes.fold(chat.state.draft)
    assert len(short) < 20 and line._pastes.unfold(short) == chat.state.draft
    chat.send(chat.state.draft + " it", "Again.")
    assert chat.state.conversation.title == "explain it"


def test_find_searches_the_conversation(chat: Chat) -> None:
    chat.send("When is HIGH tide?", "At noon.")
    chat.send("And low tide?", "At six.")
    chat.send("/undo")
    chat.send("Thanks", "Welcome.")
    assert chat.send("/find tide high").startswith("   1 user")
    assert "other branches that contain them: 1" in chat.send("/find low")
    assert "no message" in chat.send("/find penguin")
    with pytest.raises(UsageError):
        chat.send("/find")
