"""Flags reach the engine, and contradict each other with an error."""

from pathlib import Path

import pytest

from tests.support import fake_engine
from tests.support.in_process import Program, failure


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    return Program(fake_engine.make_folder(tmp_path / "model"), monkeypatch)


def test_sampling_flags_reach_the_engine(program: Program) -> None:
    program.run(
        "-p",
        "x",
        "--temp",
        "0.3",
        "--top-k",
        "5",
        "--top-p",
        "0.8",
        "--min-p",
        "0.1",
        "--seed",
        "9",
        "-n",
        "4",
        "--repeat-penalty",
        "1.2",
        "--presence-penalty",
        "0.5",
        "--frequency-penalty",
        "0.25",
        "--ctx-size",
        "128",
        "--threads",
        "2",
        "--dtype",
        "float32",
        "--kv-dtype",
        "int8",
    )
    params = program.engine.params[0]
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.3, 5, 0.8, 0.1)
    assert (params.seed, params.max_tokens, params.repeat_penalty) == (9, 4, 1.2)
    assert (params.presence_penalty, params.frequency_penalty) == (0.5, 0.25)
    assert params.stop_ids == (fake_engine.END_ID,)
    config = program.engine.config
    assert (config.ctx_size_tokens, config.num_threads, config.dtype) == (128, 2, "float32")
    assert config.kv_dtype == "int8"


def test_flags_take_precedence_over_the_environment(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWIFTCHAT_TEMP", "0.4")
    monkeypatch.setenv("SWIFTCHAT_TOP_K", "7")
    program.run("-p", "x", "--top-k", "3")
    assert (program.engine.params[0].temperature, program.engine.params[0].top_k) == (0.4, 3)


@pytest.mark.parametrize(
    "options",
    [
        ("--json", "--stream-json"),
        ("--device", "cpu", "--tp", "2"),
        ("--device", "cpu", "--tp", "auto"),
        ("--device", "cpu", "--pp", "2"),
    ],
)
def test_contradictory_options_are_usage_errors(program: Program, options: tuple[str, ...]) -> None:
    error = failure(program, "-p", "x", *options)
    assert error.exit_code == 2 and options[-2] in error.message and error.hint
