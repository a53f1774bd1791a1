"""Several answers to one prompt: `swiftchat --samples N -p …`, with the fake engine."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from swiftchat.chat.history.store import load_session
from swiftchat.engine.api.protocol import EngineInfo
from swiftchat.errors import UsageError
from tests.support import fake_engine
from tests.support.in_process import Program, failure


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    found = Program(fake_engine.make_folder(tmp_path / "model"), monkeypatch)
    found.engine.answers = [{"text": "One."}, {"text": "Two."}, {"text": "Three."}]
    return found


def test_the_answers_have_consecutive_seeds_and_one_prompt(program: Program) -> None:
    result = program.run("--samples", "3", "--seed", "5", "-p", "Why?")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == (
        "## answer 1\n\nOne.\n\n## answer 2\n\nTwo.\n\n## answer 3\n\nThree.\n"
    )
    assert [params.seed for params in program.engine.params] == [5, 6, 7]
    first, *others = program.engine.prompts
    assert all(prompt == first for prompt in others)
    assert program.engine.num_starts == 1


def test_without_a_seed_each_has_another_one(program: Program) -> None:
    program.run("--samples", "3", "-p", "Why?")
    seeds = [params.seed for params in program.engine.params]
    assert len({seed for seed in seeds if seed is not None}) == 3


def test_the_answers_are_branches_and_the_first_one_goes_on(program: Program) -> None:
    program.run("--samples", "3", "-p", "Why?")
    conversation = load_session(None, with_one_shots=True)
    assert [m.content for m in conversation.messages] == ["Why?", "One."]
    assert [leaf.content for leaf in conversation.branches()] == ["One.", "Two.", "Three."]


def test_json_has_all_answers(program: Program) -> None:
    report = json.loads(program.run("--samples", "2", "-p", "Why?", "--json").stdout)
    assert [one["content"] for one in report["answers"]] == ["One.", "Two."]
    assert [one["error"] for one in report["answers"]] == [None, None]


def test_a_failing_answer_leaves_the_others(program: Program) -> None:
    program.engine.answers[1]["error"] = "broken"
    result = program.run("--samples", "3", "-p", "Why?")
    assert result.exit_code == 4 and "Three." in result.stdout
    assert "answer 2: broken" in result.stderr


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--temperature", "0"), "--temperature 0"),
        (("-x",), "-x"),
        (("--mcp", "server"), "--mcp"),
        (("-m", "other"), "a second -m"),
    ],
)
def test_contradictory_options_are_named(
    program: Program, options: tuple[str, ...], named: str
) -> None:
    error = failure(program, "--samples", "3", "-p", "x", *options)
    assert isinstance(error, UsageError)
    assert "--samples 3" in error.message and named in error.message


@pytest.mark.fault(22)
def test_a_note_of_the_engine_is_told_once(program: Program) -> None:
    wait_ready = program.engine.wait_ready

    def noted(on_progress: object = None) -> EngineInfo:
        program.engine.info = replace(wait_ready(on_progress), note="the CPU computes")
        return program.engine.info

    program.engine.wait_ready = noted  # type: ignore[method-assign,assignment]
    result = program.run("-p", "x", "--samples", "3")
    assert (result.exit_code, result.stderr) == (0, "note: the CPU computes\n")
