"""`swiftchat run MODEL [PROMPT]`, as users of other programs type it."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from swiftchat.chat import cli
from swiftchat.errors import UsageError


def refusal(*arguments: str) -> UsageError:
    done = CliRunner().invoke(cli.swiftchat, arguments, standalone_mode=False)
    assert isinstance(done.exception, UsageError), done.output
    return done.exception


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["m"], ["-m", "m"]),
        (["m", "Say hi"], ["-m", "m", "-p", "Say hi"]),
        (["m", "--seed", "1"], ["-m", "m", "--seed", "1"]),
        (["m", "hi", "--seed", "1"], ["-m", "m", "-p", "hi", "--seed", "1"]),
    ],
)
def test_run_stands_for_options(arguments: list[str], meant: list[str]) -> None:
    ours, theirs = (click.Context(cli.swiftchat) for _ in range(2))
    cli.swiftchat.parse_args(ours, ["run", *arguments])
    cli.swiftchat.parse_args(theirs, list(meant))
    assert ours.params == theirs.params and ours.params["model"] == "m"


def test_the_words_of_a_prompt_need_quotes() -> None:
    assert refusal("run").message == "run needs a model"
    error = refusal("run", "a b", "say", "hi")
    assert error.hint == "swiftchat run 'a b' 'say hi'"


def test_a_model_without_an_option_is_told_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a model.gguf").touch()
    assert refusal("a model.gguf").hint == "swiftchat -m 'a model.gguf' chats with a model"
    assert refusal("shwo").hint == "swiftchat show"
    several = refusal("hello", "there", "--seed", "1").hint
    assert several.startswith("swiftchat -p 'hello there' sends it to a model")
    assert refusal("hello there").hint == "swiftchat -p 'hello there' sends it to a model"
