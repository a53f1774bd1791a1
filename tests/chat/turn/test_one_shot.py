"""One-shot answers: the prompt, stdin, stdout, stderr, exit codes."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from swiftchat.chat import cli
from swiftchat.chat.history.store import SessionStore, sessions_path
from swiftchat.errors import SwiftchatError
from tests.support import fake_engine
from tests.support.in_process import Program, failure


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    return Program(fake_engine.make_folder(tmp_path / "model"), monkeypatch)


def test_stdout_has_only_the_answer(program: Program) -> None:
    result = program.run("-p", "Why?")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "An answer.\n", "")
    assert program.engine.prompt_text() == (
        "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_swiftchat_chat_is_the_default_command(program: Program) -> None:
    result = CliRunner().invoke(
        cli.swiftchat, ["chat", "-m", str(program.folder), "-p", "Why?"], input=""
    )
    assert (result.exit_code, result.stdout) == (0, "An answer.\n")


def test_run_answers(program: Program) -> None:
    result = CliRunner().invoke(cli.swiftchat, ["run", str(program.folder), "Why?"], input="")
    assert (result.exit_code, result.stdout) == (0, "An answer.\n")


def test_no_second_newline_after_an_answer(program: Program) -> None:
    program.engine.answers = [{"text": "line\n"}]
    assert program.run("-p", "x").stdout == "line\n"


@pytest.mark.parametrize(
    ("args", "stdin", "message"),
    [
        ((), "from a pipe\n", "from a pipe"),
        (("-p", "-"), "from a pipe\n", "from a pipe"),
        (("-p", "Review:"), "a diff\n", "a diff\n\nReview:"),
        (("-p", "Review:"), "\n", "Review:"),
        (("-p", "x"), b"\xff and a caf\xe9\n", "\ufffd and a caf\ufffd\n\nx"),
        (("-p", "x"), "\ufeffd\u00e9j\u00e0\r\nvu".encode("utf-16-le"), "d\u00e9j\u00e0\nvu\n\nx"),
    ],
)
def test_stdin_and_prompt(
    program: Program, args: tuple[str, ...], stdin: str | bytes, message: str
) -> None:
    assert program.run(*args, stdin=stdin).exit_code == 0
    assert f"<|im_start|>user\n{message}<|im_end|>" in program.engine.prompt_text()


def test_files_precede_the_prompt(program: Program, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("content of a")
    program.run("-f", str(tmp_path / "a.txt"), "-p", "Sum up")
    fenced = f"{tmp_path}/a.txt:\n```\ncontent of a\n```\n(end of {tmp_path}/a.txt)"
    assert f"{fenced}\n\nSum up<|im_end|>" in program.engine.prompt_text()


def test_a_file_is_read_as_by_the_read_command(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt"):
        Path(name).write_text(f"content of {name}")
    Path("c.txt").write_bytes("für alle, die es lesen".encode("latin-1"))
    done = program.run("-f", "*.txt", "-p", "x")
    assert done.exit_code == 0 and "c.txt is not valid UTF-8; bytes replaced: 1" in done.stderr
    prompt = program.engine.prompt_text()
    assert all(f"content of {name}\n```" in prompt for name in ("a.txt", "b.txt"))
    (tmp_path / "picture").write_bytes(b"\x89PNG\0")
    assert failure(program, "-f", f"{tmp_path}/picture", "-p", "x").exit_code == 2
    assert failure(program, "-f", str(tmp_path), "-p", "x").exit_code == 2
    offline = failure(program, "--offline", "-f", "https://x.test/", "-p", "x")
    assert offline.exit_code == 2 and "network" in offline.message


def test_the_system_prompt(program: Program, tmp_path: Path) -> None:
    program.run("-s", "Be brief.", "-p", "x")
    assert program.engine.prompt_text().startswith("<|im_start|>system\nBe brief.<|im_end|>\n")
    (tmp_path / "s").write_text("From a file.")
    program.engine.answers = [{"text": "y"}]
    program.run("--system-file", str(tmp_path / "s"), "-p", "x")
    assert "system\nFrom a file.<" in program.engine.prompt_text()


def test_no_template_completes_the_plain_prompt(program: Program) -> None:
    program.run("--no-template", "-p", "Once upon")
    assert program.engine.prompt_text() == "Once upon"


def test_stop_strings(program: Program) -> None:
    assert program.run("-p", "x", "--stop", "swer").stdout == "An an\n"


def test_an_answer_with_a_reasoning_budget_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its markers are for the engine alone."""
    folder = fake_engine.make_folder(tmp_path, fake_engine.TEMPLATE + "{# </think> #}")
    program = Program(folder, monkeypatch)
    program.engine.answers = [{"text": "<think>hm</think>four"}]
    result = program.run("-p", "x", "--json", "--reasoning-budget", "50", "-n", "40")
    report = json.loads(result.stdout)
    assert (report["reasoning"], report["content"]) == ("hm", "four")
    assert report["params"]["reasoning_budget"] == 50 and "reasoning" not in report["params"]
    assert report["usage"]["reasoning_tokens"] == len("<think>hm</think>")
    with SessionStore(sessions_path(), print) as store:
        message = store.load(report["session_id"]).messages[-1]
    assert message.params["reasoning_budget"] == 50 and "reasoning" not in message.params


def test_json_is_one_object_of_schema_1(program: Program) -> None:
    report = json.loads(program.run("-p", "x", "--json").stdout)
    assert report["schema"] == 1
    assert report["content"] == "An answer." and report["finish_reason"] == "stop"
    assert report["model"]["id"] == "model" and report["model"]["device"] == "fake"
    assert report["model"]["quantization"] is None
    assert report["usage"] == {
        "prompt_tokens": 24,
        "cached_tokens": 3,
        "restored_tokens": 0,
        "swapped_tokens": 0,
        "completion_tokens": 10,
        "reasoning_tokens": 0,
        "dropped_tokens": 0,
        "context_used": 34,
        "context_size": 256,
    } | {
        "prompt_tokens": len(program.engine.prompts[0]),
        "context_used": len(program.engine.prompts[0]) + 10,
    }
    assert set(report) == {
        "schema",
        "id",
        "session_id",
        "created",
        "model",
        "content",
        "reasoning",
        "finish_reason",
        "logprobs",
        "cumulative_logprob",
        "beam_score",
        "prompt_logprobs",
        "usage",
        "timings",
        "speculation",
        "params",
        "warnings",
    }
    assert report["speculation"] is None
    assert report["params"]["seed"] == 7


def test_stream_json_deltas_are_the_content(program: Program) -> None:
    lines = [
        json.loads(line)
        for line in program.run("-p", "x", "--stream-json").stdout.split("\n")
        if line
    ]
    kinds = [line["event"] for line in lines]
    assert kinds[0] == "start" and kinds[1] == "prefill" and kinds[-1] == "end"
    deltas = "".join(line["content"] for line in lines if line["event"] == "delta")
    assert deltas == lines[-1]["content"] == "An answer."


def test_stats_go_to_stderr(program: Program) -> None:
    result = program.run("-p", "x", "--stats")
    assert result.stdout == "An answer.\n"
    assert "answer 10 tokens" in result.stderr and "3 cached" in result.stderr
    assert "after the start of the command" in result.stderr


def test_debug_prints_when_each_phase_of_the_start_began(program: Program) -> None:
    rows = program.run("-p", "x", "--debug").stderr.splitlines()[-4:]
    labels = [row.split(maxsplit=1)[1] for row in rows[1:]]
    assert labels == ["starting a process", "computing the prompt", "first token"]
    times = [float(row.split()[0]) for row in rows[1:]]
    assert times[0] > 0 and times == sorted(times)


def test_stats_count_from_the_start_of_the_command(tmp_path: Path) -> None:
    folder = fake_engine.make_folder(tmp_path / "model")
    run_later = "import runpy, sys, time; time.sleep(0.7); del sys.argv[0];"
    run_later += "runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", run_later, fake_engine.__file__, str(folder), '["A"]']
    began = time.monotonic()
    done = subprocess.run(
        [*command, "-p", "x", "--json"], capture_output=True, stdin=subprocess.DEVNULL, check=True
    )
    took_s = time.monotonic() - began
    timings = json.loads(done.stdout)["timings"]
    # The system records the start of a process in steps of 10 ms.
    assert 0.65 < timings["first_token_s"] < took_s + 0.02
    assert timings["first_token_s"] > timings["ttft_s"]


def test_an_empty_prompt_is_a_usage_error(program: Program) -> None:
    for args, stdin in ((("-p", ""), ""), ((), ""), (("-p", " \n"), "\n")):
        assert failure(program, *args, stdin=stdin).exit_code == 2


@pytest.mark.fault(18)
@pytest.mark.parametrize("num_tokens", [255, 256, 257])
def test_a_prompt_is_used_whole_or_refused(program: Program, num_tokens: int) -> None:
    """Of 256 tokens: 19 are those of the template, and every byte of the question is one."""
    question = "x" * (num_tokens - 19)
    if num_tokens < 256:
        assert program.run("-p", question).exit_code == 0
        assert len(program.engine.prompts[0]) == num_tokens
        assert question in program.engine.prompt_text()
    else:
        error = failure(program, "-p", question)
        assert error.exit_code == 5
        assert f"has {num_tokens} tokens, the context 256" in error.message
        assert "--ctx-size" in error.hint and "--overflow drop-oldest" in error.hint
        assert program.engine.prompts == []


def test_a_failed_answer_prints_its_beginning(program: Program) -> None:
    program.engine.answers = [{"text": "Half an ans", "error": "the engine process ended"}]
    result = CliRunner().invoke(
        cli.swiftchat, ["-m", str(program.folder), "-p", "x"], standalone_mode=False
    )
    assert result.stdout == "Half an ans\n"
    assert isinstance(result.exception, SwiftchatError) and result.exception.exit_code == 4


def test_json_reports_the_quantization(program: Program) -> None:
    fake_engine.make_folder(program.folder, quantization_config={"quant_method": "gguf"})
    report = json.loads(program.run("-p", "Hi", "--json").stdout)
    assert report["model"]["quantization"] == "gguf"


def test_json_reports_a_failed_answer(program: Program) -> None:
    program.engine.answers = [{"text": "Half", "error": "gone"}]
    report = json.loads(program.run("-p", "x", "--json").stdout)
    assert (report["content"], report["finish_reason"]) == ("Half", "error")


def test_missing_files_and_models(program: Program, tmp_path: Path) -> None:
    assert failure(program, "-f", str(tmp_path / "none"), "-p", "x").exit_code == 8
    program.folder = tmp_path / "none.gguf"
    assert failure(program, "-p", "x").exit_code == 3
    program.folder = Path("no/such-model")
    missing = failure(program, "-p", "x", "--offline")
    assert missing.exit_code == 3 and "swiftchat download" in missing.hint


def test_the_end_at_a_limit_is_told(program: Program) -> None:
    program.engine.answers = [{"text": "abcdef"}]
    result = program.run("-p", "x", "-n", "3")
    assert (result.exit_code, result.stdout) == (0, "abc\n")
    assert result.stderr == ""  # the user has asked for it
    program.engine.answers = [{"text": "x" * 250}, {"text": "x" * 250}, {"text": "x" * 250}]
    program.engine.ctx_size_tokens = 1000
    result = program.run("-p", "x")
    assert (result.exit_code, result.stdout) == (0, "x" * 200 + "\n")
    assert "--loop-stop off" in result.stderr
    assert json.loads(program.run("-p", "x", "--json").stdout)["finish_reason"] == "loop"
    assert program.run("-p", "x", "--loop-stop", "off").stdout == "x" * 250 + "\n"
    program.engine.ctx_size_tokens = 256
    program.engine.answers = [{"text": "abcdef", "limit": 4}]
    result = program.run("-p", "x", "-n", "100", "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 5 and report["finish_reason"] == "length"
    warning = "answer ended at the context limit of 256 tokens; --ctx-size N changes it"
    assert report["warnings"] == [warning] and f"warning: {warning}" in result.stderr
    program.engine.answers = [{"text": "abc"}]
    assert program.run("-p", "x", "-n", "100").stderr == ""


def test_a_context_that_slid_is_told(program: Program) -> None:
    program.engine.answers = [{"text": "abcdef", "dropped": 40}, {"text": "abcdef", "dropped": 40}]
    slid = "the context was full: 40 tokens in its middle were dropped, and the answer went on"
    result = program.run("-p", "x", "--overflow", "sliding")
    assert (result.exit_code, result.stdout) == (0, "abcdef\n")
    assert result.stderr == f"warning: {slid} (--overflow sliding)\n"
    report = json.loads(program.run("-p", "x", "--overflow", "sliding", "--json").stdout)
    assert report["warnings"] == [f"{slid} (--overflow sliding)"]
    usage = report["usage"]
    assert usage["dropped_tokens"] == 40
    assert usage["context_used"] == usage["prompt_tokens"] + 6 - 40
    # What the template writes before the message stays.
    assert [one.overflow_keep for one in program.engine.params] == [len("_user\n")] * 2
    assert report["params"]["overflow"] == "sliding"
