"""Answers of two models to one prompt: `swiftchat -m A -m B -p …`, with the fake engine."""

import json
from pathlib import Path

import pytest

from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.history.store import load_session
from tests.support import fake_engine
from tests.support.in_process import Program, failure


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    fake_engine.make_folder(tmp_path / "other")
    found = Program(fake_engine.make_folder(tmp_path / "model"), monkeypatch)
    found.engine.answers = [{"text": "One."}, {"text": "Two."}]
    return found


@pytest.fixture
def other(program: Program) -> str:
    return str(program.folder.with_name("other"))


def saved() -> Conversation:
    return load_session(None, with_one_shots=True)


def test_both_answers_stand_under_headings(program: Program, other: str) -> None:
    result = program.run("-m", other, "-p", "Why?")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "## model\n\nOne.\n\n## other\n\nTwo.\n"
    first, second = program.engine.prompts
    assert first == second
    assert program.engine.num_closes == program.engine.num_starts == 2


def test_models_of_the_same_file_name_have_long_headings(program: Program, tmp_path: Path) -> None:
    same = fake_engine.make_folder(tmp_path / "elsewhere" / "model")
    result = program.run("-m", str(same), "-p", "Why?")
    assert f"## {program.folder}\n" in result.stdout and f"## {same}\n" in result.stdout


def test_the_answers_are_branches_and_the_first_one_goes_on(program: Program, other: str) -> None:
    program.run("-m", other, "-p", "Why?")
    conversation = saved()
    assert [m.content for m in conversation.messages] == ["Why?", "One."]
    assert conversation.settings["model"] == str(program.folder)
    one, two = conversation.branches()
    assert (one.content, two.content) == ("One.", "Two.") and one.parent is two.parent
    assert (one.model, two.model) == (str(program.folder), other)


def test_json_has_both_answers(program: Program, other: str) -> None:
    report = json.loads(program.run("-m", other, "-p", "Why?", "--json").stdout)
    assert report["schema"] == 1
    assert [one["content"] for one in report["answers"]] == ["One.", "Two."]
    assert [one["model"]["id"] for one in report["answers"]] == ["model", "other"]
    assert [one["error"] for one in report["answers"]] == [None, None]


def test_stream_json_numbers_the_answers(program: Program, other: str) -> None:
    out = program.run("-m", other, "-p", "Why?", "--stream-json").stdout
    lines = [json.loads(line) for line in out.splitlines()]
    for index, text in enumerate(("One.", "Two.")):
        own = [line for line in lines if line["index"] == index]
        assert own[0]["event"] == "start" and own[-1]["event"] == "end"
        assert "".join(line["content"] for line in own if line["event"] == "delta") == text
        assert own[-1]["content"] == text
    assert [line["index"] for line in lines] == sorted(line["index"] for line in lines)


@pytest.mark.parametrize("missing_first", [True, False])
def test_a_model_that_cannot_be_loaded_leaves_the_other_answer(
    program: Program, other: str, missing_first: bool
) -> None:
    names = ["no/such", other] if missing_first else [other, "no/such"]
    options = [option for name in names for option in ("-m", name)]
    args = [*options, "-p", "Why?", "--offline"]
    program.folder = Path(names[0])  # Program.run begins with it
    result = program.run(*args[2:])
    assert result.exit_code == 3 and result.stdout == "## other\n\nOne.\n"
    assert result.stderr.startswith("error: such: ") and result.stderr.count("\n") == 2
    assert [m.content for m in saved().messages] == ["Why?", "One."]
    report = json.loads(program.run(*args[2:], "--json").stdout)
    failed, answered = report["answers"] if missing_first else reversed(report["answers"])
    assert (answered["content"], answered["error"]) == ("Two.", None)
    assert failed["content"] is None and failed["error"]["exit_code"] == 3


def test_a_failed_answer_keeps_its_beginning(program: Program, other: str) -> None:
    broken = {"text": "Half", "error": "the engine process ended"}
    program.engine.answers = [broken, {"text": "Two."}]
    result = program.run("-m", other, "-p", "Why?")
    assert result.exit_code == 4 and result.stdout == "## model\n\nHalf\n\n## other\n\nTwo.\n"
    program.engine.answers = [broken, {"text": "Two."}]
    result = program.run("-m", other, "-p", "Why?", "--json")
    half, two = json.loads(result.stdout)["answers"]
    assert (half["content"], half["finish_reason"], half["error"]["exit_code"]) == (
        "Half",
        "error",
        4,
    )
    assert two["content"] == "Two." and result.exit_code == 4
    program.engine.answers = [broken, {"text": "Two."}]
    out = program.run("-m", other, "-p", "Why?", "--stream-json").stdout
    kinds = [(one["index"], one["event"]) for one in map(json.loads, out.splitlines())]
    assert (0, "error") in kinds and kinds[-1] == (1, "end")


@pytest.mark.parametrize(
    "args", [("-i",), ("-x",), ("--connect", "127.0.0.1:1"), ("--dummy", "smollm2-135m")]
)
def test_options_that_need_one_model(program: Program, other: str, args: tuple[str, ...]) -> None:
    assert failure(program, "-m", other, "-p", "x", *args).exit_code == 2


def test_models_before_the_command_chat(program: Program, other: str) -> None:
    assert "## other\n" in program.run("-m", other, "chat", "-p", "x").stdout


def test_a_model_in_a_variable_may_have_spaces(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from swiftchat.chat import cli

    monkeypatch.setenv("SWIFTCHAT_MODEL", str(fake_engine.make_folder(tmp_path / "a model")))
    result = CliRunner().invoke(cli.swiftchat, ["-p", "x"], input="")
    assert result.stdout == "One.\n"
