"""Options that are given twice: a text is never dropped without a word."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from swiftchat.chat import cli
from swiftchat.chat.history.store import load_session
from swiftchat.chat.options.chat_options import CHAT_OPTIONS
from swiftchat.chat.options.option_types import OnceOption
from swiftchat.errors import UsageError
from tests.support import fake_engine
from tests.support.in_process import Program

ONCE = [option for option in CHAT_OPTIONS if type(option) is OnceOption]


def refusal(*arguments: str) -> str:
    done = CliRunner().invoke(cli.swiftchat, arguments, standalone_mode=False)
    assert isinstance(done.exception, UsageError), done.output
    return done.exception.message


@pytest.mark.parametrize("option", ONCE, ids=lambda option: option.name)
def test_a_second_text_is_refused(option: click.Option) -> None:
    flag = option.opts[0]
    message = f"{flag} was given twice"
    assert refusal(flag, "a", option.opts[-1], "b") == message
    assert refusal(flag, "a", "chat", flag, "b") == message


def test_which_options_are_meant() -> None:
    """Everything that is typed for one prompt or conversation, not what an alias may set."""
    assert {option.name for option in ONCE} == {
        "prompt",
        "knowledge",
        "knowledge_model",
        "system",
        "system_file",
        "role",
        "session",
        "template",
        "soft_prompt",
        "reasoning_budget_message",
        "schema",
        "regex",
        "grammar",
    }
    for command in (("batch", "-"), ("embed", "x")):
        assert refusal(*command, "-o", "a.npy", "-o", "b.npy") == "-o was given twice"


def test_the_last_value_of_a_setting_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(fake_engine.make_folder(tmp_path / "model"), monkeypatch)
    program.engine.answers = [{"text": "A"}]
    program.run("--temp", "0.5", "-p", "x", "--temp", "0.25")
    assert program.engine.params[0].temperature == 0.25


def test_the_length_of_one_answer_is_not_that_of_the_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(fake_engine.make_folder(tmp_path / "model"), monkeypatch)
    program.engine.answers = [{"text": "A long answer"} for _ in range(3)]
    program.run("-p", "x", "-n", "5", "--min-tokens", "2", "--temp", "0.5")
    assert load_session(None, with_one_shots=True).settings == {
        "model": str(program.folder),
        "temperature": 0.5,
    }
    program.run("-c", "-p", "y")
    assert [params.max_tokens for params in program.engine.params] == [5, None]
    assert program.engine.params[1].min_tokens == 0
    assert program.engine.params[1].temperature == 0.5
