"""Each hint is shown once per user."""

import re
import stat
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from swiftchat import errors
from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.repl.hints import Hints, hints_file
from swiftchat.chat.repl.loop import Repl
from tests.chat.slash.test_commands import Chat
from tests.chat.slash.test_commands import chat as chat
from tests.support import fake_engine


def test_each_hint_is_shown_once_and_its_file_is_private(tmp_path: Path) -> None:
    shown: list[str] = []
    file = tmp_path / "state" / "hints"
    for _ in range(2):
        hints = Hints(file, shown.append)
        hints.show("start")
        hints.show("start")
        hints.show("code")
    assert [text.split()[1] for text in shown] == ["chats", "/copy"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_no_hint_without_a_writable_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    shown: list[str] = []
    Hints(None, shown.append).show("start")
    Hints(tmp_path / "file" / "hints", shown.append).show("start")
    assert shown == []


def test_code_in_an_answer_shows_the_copy_hint_once(chat: Chat) -> None:
    assert "hint: /copy code" in chat.send("Hi", "```\nx = 1\n```\n")
    assert "hint:" not in chat.send("Again", "```\ny = 1\n```\n")
    assert hints_file().read_text() == "code\n"


@pytest.mark.parametrize("answer", ["A word.", "A `span`."])
def test_answers_without_code_show_no_hint(chat: Chat, answer: str) -> None:
    assert "hint:" not in chat.send("Hi", answer) and not hints_file().exists()


def test_the_first_start_shows_a_hint_unless_quiet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fake_engine.make_folder(tmp_path / "model")
    shown = []
    for quiet in (True, False, False):
        config = ChatConfig(model=str(folder), quiet=quiet)
        with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
            pipe.send_text("\x04")
            chat_model = ChatModel(folder, config, fake_engine.FakeEngine([]).start)  # type: ignore[arg-type]
            Repl(chat_model, config, Conversation()).run()
        shown.append("hint: chats are saved" in capsys.readouterr().err)
    assert shown == [False, True, False]


def test_default_hints_of_errors_name_an_action() -> None:
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.SwiftchatError):
            assert re.search(r"swiftchat |--\w|run the same command|\(df -h\)", kind.default_hint)
