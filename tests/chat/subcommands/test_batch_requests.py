"""Lines of a batch that the HTTP API reads: OpenAI's lines, formats of answers, tools, adapters."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from swiftchat.chat.model.adapters import open_adapters
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.subcommands.batch.answers import answer_lines, num_tokens
from swiftchat.chat.subcommands.batch.command import _made_with
from swiftchat.chat.subcommands.batch.lines import split_lines
from swiftchat.chat.subcommands.batch.output import AnswerFile
from tests.chat.endpoint.test_adapters import SHAPE
from tests.support import adapter_files
from tests.support.cases import each_case
from tests.support.fake_engine import TOOL_TEMPLATE, FakeEngine, make_folder, tool_call

HI = [{"role": "user", "content": "hi"}]
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
AGE = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


class Batch:
    """Batches of a scripted engine."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.engine = FakeEngine([], ctx_size_tokens=512)
        self.config = ChatConfig(**options)
        adapters = open_adapters(self.config, folder)
        start: Any = self.engine.start
        self.chat_model = ChatModel(folder, self.config, start, adapters)

    def run(self, *lines: Any, answers: Any = ("hello",) * 9, system: str | None = None) -> Any:
        self.engine.answers = [{"text": text} for text in answers]
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        found = answer_lines(self.chat_model, iter(split_lines(text)), system, 1)
        return sorted((record for _, record in found), key=lambda record: record["line"])

    @property
    def prompt(self) -> str:
        return self.engine.prompt_text()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "model", TOOL_TEMPLATE, **SHAPE)


@pytest.fixture
def batch(folder: Path) -> Iterator[Batch]:
    made = Batch(folder)
    with made.chat_model:
        yield made


def openai_line(custom_id: str = "a", **body: Any) -> dict[str, Any]:
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "model", "messages": HI, **body},
    }


def test_lines_in_openai_s_format(batch: Batch) -> None:
    sent = openai_line("one", max_completion_tokens=3, temperature=0), openai_line("two", n=2)
    one, two = batch.run(*sent, system="Be brief.")
    assert (one["custom_id"], two["custom_id"]) == ("one", "two")
    assert one["error"] is None and one["response"]["status_code"] == 200
    completion = ChatCompletion.model_validate(one["response"]["body"], strict=True)
    assert completion.choices[0].message.content == "hel"
    assert [choice["index"] for choice in two["response"]["body"]["choices"]] == [0, 1]
    assert (num_tokens(one), num_tokens(two)) == (3, 10)
    assert batch.prompt.startswith("<|im_start|>system\nBe brief.")
    own = {"role": "developer", "content": "Mine."}
    batch.run(openai_line(messages=[own, *HI]), system="Be brief.")
    assert "Be brief." not in batch.prompt and "Mine." in batch.prompt
    line = {**openai_line(), "url": "/v1/completions"}
    line["body"] = {"model": "model", "prompt": ["a", "b"], "echo": True}
    (found,) = batch.run(line)
    texts = [choice["text"] for choice in found["response"]["body"]["choices"]]
    assert texts == ["ahello", "bhello"]


def test_everything_that_the_api_has(batch: Batch) -> None:
    """A tool is called, a format holds, an answer goes on."""
    call = tool_call("add", a=1)
    begun = [*HI, {"role": "assistant", "content": "The answer"}]
    lines = (
        openai_line(tools=[ADD]),
        openai_line(response_format={"type": "json_object", "schema": AGE}),
        openai_line(messages=begun),
    )
    called, _, _ = batch.run(*lines, answers=(call, "{}", "x"))
    choice = called["response"]["body"]["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == {"a": 1}
    assert [one is not None for one in batch.engine.constraints] == [False, True, False]
    assert batch.prompt.endswith("assistant\nThe answer")


@each_case(
    ("change", "status", "param"),
    [
        ({"body": {"model": "model", "messages": HI, "top_kk": 1}}, 400, "top_kk"),
        ({"body": {"model": "gpt", "messages": HI}}, 404, "model"),
        ({"body": {"model": "model", "messages": HI, "stream": True}}, 400, "stream"),
        ({"body": {"model": "model", "messages": []}}, 400, "messages"),
        ({"body": {"messages": HI}}, 400, "model"),
        ({"url": "/v1/embeddings"}, 400, "url"),
        ({"url": ["x"]}, 400, "url"),
        ({"method": "GET"}, 400, None),
        ({"body": "hi"}, 400, None),
        ({"body": {"model": "model", "messages": [{**HI[0], "content": "x" * 9999}]}}, 400, None),
    ],
)
def test_openai_s_lines_that_are_refused(
    change: dict[str, Any], status: int, param: str | None, batch: Batch
) -> None:
    """The others are answered; the error is where OpenAI's clients look for it."""
    bad, good = batch.run({**openai_line("bad"), **change}, openai_line("good"))
    assert (bad["custom_id"], bad["response"]["status_code"]) == ("bad", status)
    assert bad["response"]["body"]["error"]["param"] == param
    assert bad["error"]["message"] == bad["response"]["body"]["error"]["message"]
    assert bad["error"]["exit_code"] in (2, 5)
    assert good["error"] is None


def test_our_lines_have_fields_of_the_api(batch: Batch) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": AGE}}
    results = [
        *HI,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "function": {"name": "add", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "a result"},
    ]
    called, formed, answered, plain = batch.run(
        {"id": 7, "prompt": "hi", "tools": [ADD], "seed": 3},
        {"prompt": "hi", "response_format": form, "max_tokens": 2, "system": "Mine."},
        {"messages": results, "tools": [ADD]},
        {"prompt": "hi"},
        answers=(tool_call("add", a=1), "{}", "x", "y"),
        system="Be brief.",
    )
    assert answered.get("error") is None, answered
    (call,) = called.pop("tool_calls")
    assert (call["name"], call["arguments"], called["id"]) == ("add", {"a": 1}, 7)
    assert [params.seed for params in batch.engine.params] == [3, None, None, None]
    assert formed["content"] == "{}" and batch.engine.params[1].max_tokens == 2
    assert [one is not None for one in batch.engine.constraints] == [False, True, False, False]
    texts = [batch.engine.prompt_text(i) for i in range(4)]
    assert "Mine." in texts[1] and "a result" in texts[2] and "Be brief." in texts[3]
    assert (answered["content"], plain["content"]) == ("x", "y")


@each_case(
    ("line", "message"),
    [
        ({"prompt": "a", "response_format": {"type": "xml"}}, "response_format: its type is"),
        ({"prompt": "a", "tool_choice": "required"}, "there are no tools"),
        ({"prompt": "a", "tools": "add"}, "tools: "),
        ({"prompt": "a", "lora": "odd"}, "no adapter 'odd' is loaded"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "no call has the id"),
        ({"prompt": "a", "tools": [ADD], "color": 1}, "no option 'color'"),
    ],
)
def test_wrong_fields_of_our_lines(line: dict[str, Any], message: str, batch: Batch) -> None:
    (record,) = batch.run(line)
    assert message in record["error"]["message"] and record["error"]["exit_code"] == 2


def test_formats_and_adapters_of_the_command(folder: Path, tmp_path: Path) -> None:
    one, two = (adapter_files.write_peft(tmp_path / name) for name in ("one", "two"))
    options = {"lora": (f"{one}=0.5",), "schema": json.dumps(AGE)}
    batch = Batch(folder, **options)
    batch.chat_model.adapters.load(str(two))
    batch.chat_model.adapters.use(["one=0.5"])
    with batch.chat_model:
        batch.run("hi", openai_line(), {"prompt": "hi", "lora": "two"}, openai_line(lora=[]))
    tunings = [one and one.adapters for one in batch.engine.tunings]
    assert tunings == [((str(one), 0.5),), ((str(one), 0.5),), ((str(two), 1.0),), None]
    assert all(batch.engine.constraints)
    assert "JSON schema" in batch.engine.prompt_text(0)
    made = [_made_with(ChatConfig(**changed))["options"] for changed in ({}, options)]
    changed = {**options, "schema": json.dumps({**AGE, "required": []})}
    assert len({*made, _made_with(ChatConfig(**changed))["options"]}) == 3


def test_a_file_of_openai_s_lines_is_continued(batch: Batch, tmp_path: Path) -> None:
    text = "".join(f"{json.dumps(openai_line(name))}\n" for name in "ab")
    lines, path = split_lines(text), tmp_path / "out.jsonl"
    bad = {**openai_line("b"), "url": "/v1/other"}
    output = AnswerFile(path, lines, as_finished=False)
    for record in batch.run(openai_line("a"), bad):
        output.add({**record, "key": lines[record["line"] - 1].key})
    output.finish()
    assert AnswerFile(path, lines, as_finished=False).kept == {1}
