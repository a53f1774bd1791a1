"""`swiftchat batch` with SmolLM2 in real processes: answers, bad lines, kills and resumption."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.subcommands.batch.answers import answer_lines
from swiftchat.chat.subcommands.batch.command import _made_with
from swiftchat.chat.subcommands.batch.lines import Line, parse_request, split_lines
from swiftchat.chat.subcommands.batch.output import AnswerFile, Stream
from swiftchat.chat.terminal.output import write
from swiftchat.engine.sampling.sampler import NOT_FINITE, sampling_error
from swiftchat.errors import DeviceError, UsageError
from tests.support.fake_engine import FakeEngine, make_folder
from tests.support.worker_processes import wait_until

GREEDY = {"temperature": 0, "max_tokens": 8}


@pytest.fixture(scope="module")
def command(smollm2_gguf: Path) -> list[str]:
    model = ["-m", str(smollm2_gguf), "--device", "cpu", "--no-attach", "--ctx-size", "512"]
    return [sys.executable, "-m", "swiftchat.chat", "batch", *model]


def run(command: list[str], *args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([*command, *args], input=stdin, capture_output=True, text=True)


def jsonl(values: list[Any]) -> str:
    return "".join(f"{json.dumps(value)}\n" for value in values)


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_each_line_is_answered_as_alone_and_bad_lines_are_errors(command: list[str]) -> None:
    prompts = [{"prompt": f"Count to {n}.", **GREEDY} for n in range(2, 6)]
    lines = [
        *prompts,
        "a text",
        {"messages": [{"role": "user", "content": "Hi"}], "logprobs": 1, **GREEDY},
        {"id": "long", "prompt": "word " * 600},
        {"prompt": "x", "color": 1},
    ]
    text = jsonl(lines) + "\nnot JSON\n"
    done = run(command, "-", "-n", "4", stdin=text)
    found = records(done.stdout)
    assert [one["line"] for one in found] == [1, 2, 3, 4, 5, 6, 7, 8, 10]
    assert found[4]["usage"]["completion_tokens"] == 4
    assert found[5]["cumulative_logprob"] < 0
    errors = [one["error"] for one in found[6:]]
    assert [one["exit_code"] for one in errors] == [5, 2, 2] and found[6]["id"] == "long"
    assert "no option 'color'" in errors[1]["message"] and "not JSON" in errors[2]["message"]
    assert done.returncode == 5, "the code of the first error"
    assert "9 lines · 6 answered · 3 errors" in done.stderr
    alone = records(run(command, "-", "--parallel", "1", stdin=jsonl(prompts)).stdout)
    for one, other in zip(alone, found, strict=False):
        assert (one["content"], one["finish_reason"]) == (other["content"], other["finish_reason"])


def test_a_file_has_the_answers_in_order(command: list[str], tmp_path: Path) -> None:
    lengths = [120, 1, 12, 2]  # the first answer ends last
    lines = [
        {"prompt": "Tell me a story.", "max_tokens": n, "min_tokens": n, "temperature": 0}
        for n in lengths
    ]
    out = tmp_path / "out.jsonl"
    done = run(command, "-", "-o", str(out), "-q", stdin=jsonl(lines))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    found = records(out.read_text())
    assert [one["line"] for one in found] == [1, 2, 3, 4]
    assert [one["usage"]["completion_tokens"] for one in found] == lengths
    run(command, "-", "-o", str(out), "--overwrite", "--as-finished", stdin=jsonl(lines))
    found = records(out.read_text())
    assert {one["line"] for one in found} == {1, 2, 3, 4} and found[-1]["line"] == 1
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["out.jsonl"]


def test_a_killed_batch_continues_with_the_missing_lines(
    command: list[str], tmp_path: Path
) -> None:
    lines = [{"prompt": f"Write about {n}.", "temperature": 0, "max_tokens": 40} for n in range(12)]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(jsonl(lines))
    arguments = [*command, str(source), "-o", str(out), "--parallel", "2"]
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE)
    wait_until(lambda: out.exists() and out.read_text().count("\n") >= 2, 120)
    process.kill()
    process.communicate()
    kept = [one for one in out.read_text().split("\n")[:-1] if json.loads(one)]
    assert 2 <= len(kept) < len(lines)
    with out.open("a") as file:
        file.write(kept[0][:20])  # as if it was killed while it wrote
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: out.read_text().count("\n") > len(kept), 120)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130 and "the same command answers the missing lines" in errors
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 0 and "from before" in done.stderr
    found = out.read_text().splitlines()
    assert [json.loads(one)["line"] for one in found] == list(range(1, 13))
    assert set(kept) <= set(found)
    other = run(command, str(out), "-o", str(out))
    assert other.returncode == 2 and "is not an answer to a line of this input" in other.stderr


def test_lines_with_errors_are_tried_again(command: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    text = jsonl([{"prompt": "Hi", **GREEDY}, {"prompt": ""}])
    for _ in range(2):
        done = run(command, "-", "-o", str(out), stdin=text)
        assert done.returncode == 2
        assert ["error" in one for one in records(out.read_text())] == [False, True]
    assert "1 from before · 1 error ·" in done.stderr


def test_the_end_of_the_engine_ends_the_batch(command: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    done = run(command, "-", "-o", str(out), "--device", "cuda:77", stdin='"Hi"\n')
    assert done.returncode == 4 and "1 missing" in done.stderr
    assert run(command, "-", "--overwrite").returncode == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "neither a JSON string nor an object"),
        ("{}", "neither of prompt and messages"),
        ('{"prompt": "a", "messages": []}', "both of prompt and messages"),
        ('{"messages": []}', "not a list of messages"),
        ('{"messages": ["a"]}', "a message is invalid"),
        ('{"messages": [{"role": "odd", "content": "a"}]}', "no role 'odd'"),
        ('{"prompt": 1}', "prompt is not a string"),
        ('{"prompt": " "}', "the prompt is empty"),
        ('{"prompt": "a", "system": 1}', "system is not a string"),
        ('{"prompt": "a", "top_k": true}', "top_k: must be a whole number .*, not true"),
        ('{"prompt": "a", "top_k": "x"}', "top_k: must be a whole number"),
        ('{"prompt": "a", "temp": 1, "temperature": 1}', "temperature is set twice"),
        ('{"prompt": "a", "ctx_size": 1}', "no option 'ctx_size'"),
        ("[" * 100_000, "not JSON"),
        ('{"prompt": "\\ud800"}', "surrogates not allowed"),
    ],
)
def test_invalid_lines_say_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_request(Line(1, text), None)


def test_lines_have_options_and_a_system_prompt() -> None:
    text = '{"prompt": "a", "temp": 1, "stop": "x", "ban": ["y", "z"], "id": [1]}'
    (line,) = split_lines(f"\n  \n{text}\n")
    assert (line.number, line.id) == (3, [1])
    request = parse_request(line, "Be brief.")
    assert request.options == {"temperature": 1.0, "stop": ("x",), "ban": ("y", "z")}
    assert [one["content"] for one in request.messages] == ["Be brief.", "a"]
    own = '{"prompt": "a", "system": "Be long."}'
    assert parse_request(Line(1, own), "Be brief.").messages[0]["content"] == "Be long."


def test_developers_are_system_messages() -> None:
    text = '{"messages": [{"role": "developer", "content": "x"}, {"role": "user", "content": "a"}]}'
    request = parse_request(Line(1, text), "Be brief.")
    assert [one["role"] for one in request.messages] == ["system", "user"]


def test_a_file_keeps_any_text(tmp_path: Path) -> None:
    path, lines = tmp_path / "out.jsonl", [Line(1, "a"), Line(2, "b")]
    out = AnswerFile(path, lines, as_finished=False)
    for line, text in ((2, "two\u2028lines\x85\r\n\t你"), (1, "\ud800")):
        out.add({"line": line, "key": lines[line - 1].key, "content": text})
    out.finish()
    *found, end = path.read_bytes().split(b"\n")
    assert end == b"" and [json.loads(one)["line"] for one in found] == [1, 2]
    assert json.loads(found[1])["content"] == "two\u2028lines\x85\r\n\t你"
    again = AnswerFile(path, lines, as_finished=False)
    assert again.kept == {1, 2}
    again.finish()
    assert path.read_bytes().split(b"\n")[:-1] == found


def test_stdout_waits_for_earlier_lines(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [Line(1, "a"), Line(3, "b"), Line(4, "c")]
    out = Stream(write, lines, as_finished=False)
    out.add({"line": 3})
    assert capsys.readouterr().out == ""
    out.add({"line": 1})
    assert [one["line"] for one in records(capsys.readouterr().out)] == [1, 3]
    out.add({"line": 4})
    assert capsys.readouterr().out == '{"line": 4}\n'


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[tuple[FakeEngine, ChatModel]]:
    engine = FakeEngine([])
    with ChatModel(make_folder(tmp_path / "model"), ChatConfig(), engine.start) as chat_model:
        yield engine, chat_model


def answered(chat_model: ChatModel, *values: Any) -> list[Any]:
    lines = split_lines(jsonl(list(values)))
    found = [record for _, record in answer_lines(chat_model, iter(lines), None, 4)]
    return sorted(found, key=lambda record: record["line"])


def test_a_line_may_have_several_answers(fake: tuple[FakeEngine, ChatModel]) -> None:
    engine, chat_model = fake
    engine.answers = [{"text": text} for text in ("One.", "Two.", "Three.", "Other")]
    several, single = answered(chat_model, {"prompt": "a", "samples": 3, "seed": 5}, "b")
    assert [one["content"] for one in several["answers"]] == ["One.", "Two.", "Three."]
    assert [params.seed for params in engine.params] == [5, 6, 7, None]
    assert several["usage"]["completion_tokens"] == len("One.Two.Three.")
    assert several["usage"]["prompt_tokens"] == several["answers"][0]["usage"]["prompt_tokens"]
    assert single["content"] == "Other" and "answers" not in single


def test_the_answers_of_a_line_may_be_beams(fake: tuple[FakeEngine, ChatModel]) -> None:
    engine, chat_model = fake
    engine.answers = [{"beams": [["Best.", -0.25], ["Second.", -0.5]]}]
    line = {"prompt": "a", "beams": 4, "samples": 2, "early_stopping": True}
    (found,) = answered(chat_model, line)
    pairs = [(one["content"], one["beam_score"]) for one in found["answers"]]
    assert pairs == [("Best.", -0.25), ("Second.", -0.5)]
    (params,) = engine.params
    assert (params.beams, params.returned_beams, params.early_stopping) == (4, 2, "true")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"samples": 2, "temperature": 0}, "2 samples with temperature 0"),
        ({"samples": 3, "beams": 2}, "--samples 3 is above --beams 2"),
        ({"samples": 65}, "between 1 and 64, not '65'"),
        ({"diversity_rate": 2}, "diversity_rate is for a beam search"),
    ],
)
def test_contradictions_of_a_line_are_its_error(
    line: dict[str, Any], message: str, fake: tuple[FakeEngine, ChatModel]
) -> None:
    engine, chat_model = fake
    engine.answers = [{"text": "fine"}]
    failed, other = answered(chat_model, {"prompt": "a", **line}, "b")
    assert message in failed["error"]["message"] and failed["error"]["exit_code"] == 2
    assert other["content"] == "fine"


def test_an_error_of_one_answer_is_that_of_the_line(fake: tuple[FakeEngine, ChatModel]) -> None:
    engine, chat_model = fake
    engine.answers = [{"text": "One."}, {"error": "the GPU is gone"}]
    with pytest.raises(DeviceError, match="the GPU is gone"):
        answered(chat_model, {"prompt": "a", "samples": 2})


def test_logits_that_are_not_finite_are_an_error_of_their_line(
    fake: tuple[FakeEngine, ChatModel],
) -> None:
    engine, chat_model = fake
    engine.answers = [{"error": sampling_error(NOT_FINITE)}, {"text": "fine"}]
    failed, other = answered(chat_model, {"prompt": "a"}, {"prompt": "b"})
    assert "not finite numbers" in failed["error"]["message"] and failed["error"]["exit_code"] == 7
    assert other["content"] == "fine"


def test_choices_may_be_json_booleans() -> None:
    for value, text in ((True, "true"), (False, "false"), ("never", "never")):
        line = Line(1, json.dumps({"prompt": "a", "beams": 2, "early_stopping": value}))
        assert parse_request(line, None).options == {"beams": 2, "early_stopping": text}
    with pytest.raises(UsageError, match="speculate: must be auto, off, ngram or draft"):
        parse_request(Line(1, '{"prompt": "a", "speculate": true}'), None)


def test_null_is_no_value_of_a_line(fake: tuple[FakeEngine, ChatModel]) -> None:
    engine, chat_model = fake
    engine.answers = [{"text": "fine"}]
    (record,) = answered(chat_model, {"prompt": "a", "samples": None, "seed": None, "stop": None})
    assert record["content"] == "fine"


def test_a_file_is_continued_with_the_same_model_and_options(tmp_path: Path) -> None:
    path, lines = tmp_path / "out.jsonl", split_lines('"a"\n"b"\n')
    made_with = {"model": "m", "options": "0123"}
    first = AnswerFile(path, lines, as_finished=False, made_with=made_with)
    first.add({"line": 1, "key": lines[0].key, "content": "x"})
    first.finish()
    assert AnswerFile(path, lines, as_finished=False, made_with=made_with).kept == {1}
    before = path.read_bytes()
    for name in made_with:
        other = {**made_with, name: "other"}
        with pytest.raises(UsageError, match=f"other {name}"):
            AnswerFile(path, lines, as_finished=False, made_with=other)
        assert path.read_bytes() == before
    assert not AnswerFile(path, lines, False, overwrite=True, made_with=other).kept


def test_options_that_change_answers_change_the_hash() -> None:
    plain = _made_with(ChatConfig())
    for options in (
        {"temperature": 0.5},
        {"system": "Be brief."},
        {"think": "on"},
        {"ban": ("a",)},
    ):
        assert _made_with(ChatConfig(**options))["options"] != plain["options"]
    assert _made_with(ChatConfig(quiet=True, parallel=3)) == plain
    assert _made_with(ChatConfig(model="m"))["model"] == "m"
