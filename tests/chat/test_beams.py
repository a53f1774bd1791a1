"""Beam search of the command line: `swiftchat --beams N -p …`, with the fake engine."""

import json
from pathlib import Path

import pytest

from swiftchat.chat.history.store import load_session
from swiftchat.errors import UsageError
from tests.support import fake_engine
from tests.support.in_process import Program, failure


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    found = Program(fake_engine.make_folder(tmp_path / "model"), monkeypatch)
    found.engine.answers = [{"beams": [["Best.", -0.25], ["Second.", -0.5], ["Third.", -1.5]]}]
    return found


def test_the_best_answer_is_printed(program: Program) -> None:
    options = ("--beams", "4", "--length-penalty", "0.5", "--early-stopping", "never")
    result = program.run(*options, "--diversity-rate", "0.25", "-p", "Why?")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "Best.\n", "")
    (params,) = program.engine.params
    assert (params.beams, params.returned_beams, params.temperature) == (4, 1, 0)
    assert (params.length_penalty, params.early_stopping) == (0.5, "never")
    assert params.diversity_rate == 0.25


def test_samples_are_the_best_answers_of_one_search(program: Program) -> None:
    result = program.run("--beams", "4", "--samples", "3", "-p", "Why?")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == (
        "## answer 1\n\nBest.\n\n## answer 2\n\nSecond.\n\n## answer 3\n\nThird.\n"
    )
    assert [params.returned_beams for params in program.engine.params] == [3]
    branches = load_session(None, with_one_shots=True).branches()
    assert [leaf.content for leaf in branches] == ["Best.", "Second.", "Third."]


def test_json_has_the_scores(program: Program) -> None:
    report = json.loads(program.run("--beams", "3", "--samples", "3", "-p", "x", "--json").stdout)
    found = [(one["content"], one["beam_score"]) for one in report["answers"]]
    assert found == [("Best.", -0.25), ("Second.", -0.5), ("Third.", -1.5)]
    usage = [one["usage"]["completion_tokens"] for one in report["answers"]]
    assert usage == [len("Best."), len("Second."), len("Third.")]
    assert report["answers"][0]["params"]["beams"] == 3


def test_the_speed_is_that_of_the_engine(program: Program) -> None:
    """All tokens come at once; the fake engine took 0.5 s and 0.25 s."""
    report = json.loads(program.run("--beams", "3", "-p", "x", "--json").stdout)
    timing = report["timings"]
    assert timing["completion_tps"] == (len("Best.") - 1) / 0.25
    assert timing["prompt_tps"] == (report["usage"]["prompt_tokens"] - 3) / 0.5


def test_a_stop_text_cuts_each_answer(program: Program) -> None:
    result = program.run("--beams", "3", "--samples", "2", "--stop", "n", "-p", "x", "--raw")
    assert result.stdout == "## answer 1\n\nBest.\n\n## answer 2\n\nSeco\n"


def test_fewer_beams_than_answers_are_an_error_of_the_missing_ones(program: Program) -> None:
    result = program.run("--beams", "4", "--samples", "4", "-p", "x")
    assert result.exit_code == 4 and "Third." in result.stdout
    assert "answer 4: the beam search ended without this answer" in result.stderr


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--temperature", "0.5"), "temperature 0.5"),
        (("--samples", "5"), "--samples 5"),
        (("--json-object",), "--json-object"),
        (("--regex", "a"), "--regex"),
        (("--mcp", "server"), "--mcp"),
        (("--draft", "other"), "--draft"),
        (("--tp", "2"), "--tp"),
        (("--logprobs",), "logprobs"),
        (("--overflow", "sliding"), "overflow sliding"),
    ],
)
def test_contradictory_options_are_named(
    program: Program, options: tuple[str, ...], named: str
) -> None:
    error = failure(program, "--beams", "4", "-p", "x", *options)
    assert isinstance(error, UsageError)
    assert "beams 4" in error.message and named in error.message


@pytest.mark.parametrize(
    "option",
    [("--length-penalty", "2"), ("--early-stopping", "true"), ("--diversity-rate", "0.5")],
)
def test_options_of_a_beam_search_need_one(program: Program, option: tuple[str, str]) -> None:
    error = failure(program, "-p", "x", *option)
    assert isinstance(error, UsageError) and option[0] in error.message
    assert "--beams" in error.hint
