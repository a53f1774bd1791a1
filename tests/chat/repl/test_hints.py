"""Hints are told once, and only to somebody who looks."""

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
from tests.chat.commands.test_slash import Chat
from tests.chat.commands.test_slash import chat as chat
from tests.support import fake_engine


def test_each_hint_once_and_for_the_user_alone(tmp_path: Path) -> None:
    told: list[str] = []
    file = tmp_path / "state" / "hints"
    for _ in range(2):
        hints = Hints(file, told.append)
        hints.show("start")
        hints.show("start")
        hints.show("code")
    assert [text.split()[1] for text in told] == ["talks", "/copy"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_no_hint_without_a_place_to_remember_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told: list[str] = []
    Hints(None, told.append).show("start")
    Hints(tmp_path / "file" / "hints", told.append).show("start")
    assert told == []


def test_an_answer_with_code_brings_the_hint_once(chat: Chat) -> None:
    assert "hint: /copy code" in chat.say("Hi", "```\nx = 1\n```\n")
    assert "hint:" not in chat.say("Again", "```\ny = 1\n```\n")
    assert hints_file().read_text() == "code\n"


@pytest.mark.parametrize("answer", ["A word.", "A `span`."])
def test_other_answers_bring_none(chat: Chat, answer: str) -> None:
    assert "hint:" not in chat.say("Hi", answer) and not hints_file().exists()


def test_the_first_start_and_only_where_it_is_not_quiet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fake_engine.make_folder(tmp_path / "model")
    told = []
    for quiet in (True, False, False):
        config = ChatConfig(model=str(folder), quiet=quiet)
        with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
            pipe.send_text("\x04")
            chat_model = ChatModel(folder, config, fake_engine.FakeEngine([]).start)  # type: ignore[arg-type]
            Repl(chat_model, config, Conversation()).run()
        told.append("hint: talks are kept" in capsys.readouterr().err)
    assert told == [False, True, False]


def test_errors_end_with_what_to_do_next() -> None:
    for name in errors.__all__:
        kind = getattr(errors, name)
        if isinstance(kind, type):
            assert re.search(r"swiftchat |--\w|run the same command|\(df -h\)", kind.default_hint)
