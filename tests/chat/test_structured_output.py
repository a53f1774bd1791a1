"""Structured output of one-shots and chats: with a scripted engine, and with a tiny model."""

import json
import re
from pathlib import Path

import pytest

from tests.chat.turn.test_one_shot import program as program
from tests.support import fake_engine
from tests.support.in_process import Program, failure
from tests.support.remote_engine import chat_model_folder
from tests.support.serve_processes import swiftchat

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 22, 333]}},
        "required": ["ok", "n"],
        "additionalProperties": False,
    }
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model_folder(tmp_path_factory.mktemp("model"), max_position_embeddings=1024)


def test_the_model_sees_the_schema(program: Program) -> None:
    program.engine.ctx_size_tokens = 1024
    program.engine.answers = [{"text": '{"ok": true}'}]
    result = program.run("-p", "Why?", "-s", "Be brief.", "--schema", SCHEMA)
    assert (result.exit_code, result.stdout) == (0, '{"ok": true}\n')
    assert "system\nBe brief.\n\nAnswer with a JSON document" in program.engine.prompt_text()
    (spec,) = program.engine.constraints
    assert spec is not None and '"ok"' in spec.grammar
    assert spec.vocabulary.pieces[ord("a")] == b"a"
    program.engine.answers = [{"text": "null"}]
    assert program.run("-p", "x", "--schema", SCHEMA, "--no-schema-prompt").exit_code == 0
    assert "system" not in program.engine.prompt_text()


@pytest.mark.parametrize("options", [(), ("--raw",)])
@pytest.mark.parametrize("think", ["auto", "off"])
def test_the_format_begins_after_the_reasoning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], think: str
) -> None:
    """Without reasoning only if it is off and the prompt has not opened it."""
    for opening, reasons in (("", think == "auto"), ("<think>\\n", True)):
        template = fake_engine.TEMPLATE.replace("assistant\n' }}", f"assistant\n{opening}' }}}}")
        folder = tmp_path / f"model{len(opening)}"
        program = Program(fake_engine.make_folder(folder, template + "{# </think> #}"), monkeypatch)
        program.engine.answers = [{"text": "<think>hm</think>{}"}]
        done = program.run("-p", "x", "--json-object", "--think", think, *options)
        assert done.exit_code == 0, done.exception
        (spec,) = program.engine.constraints
        assert spec is not None and ("</think>" in spec.grammar) == reasons


@pytest.mark.fault(49)
def test_an_incomplete_document_is_not_on_stdout(program: Program) -> None:
    program.engine.ctx_size_tokens = 1024
    program.engine.answers = [{"text": '{"ok": true}'}]
    result = program.run("-p", "Why?", "--schema", SCHEMA, "-n", "9")
    assert (result.exit_code, result.stdout) == (5, "")
    assert 'incomplete answer: {"ok": tr' in result.stderr and "token limit" in result.stderr


@pytest.mark.fault(49)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--schema", '{"not": {}}'), "cannot be enforced at #"),
        (("--schema", "missing.json"), "cannot read missing.json"),
        (("--regex", "a", "--json-object"), "--json-object and --regex"),
        (("--json-object", "--mcp", "x"), "calls no tools"),
        (("--no-schema-prompt",), "--no-schema-prompt is for --schema"),
    ],
)
def test_errors_come_before_the_model_is_loaded(
    program: Program, options: tuple[str, ...], message: str
) -> None:
    error = failure(program, "-p", "x", *options)
    assert error.exit_code in (2, 8) and message in error.message
    assert program.engine.num_starts == 0


@pytest.mark.fault(49)
def test_answers_of_a_model_match(folder: Path) -> None:
    """At temperature 1.5, from random weights, in a context with room for the instruction."""
    model = ("-m", str(folder), "--device", "cpu", "--no-save")
    for seed in range(3):
        options = (*model, "--temp", "1.5", "--seed", str(seed))
        done = swiftchat("-p", "x", "--schema", SCHEMA, *options)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert isinstance(found["ok"], bool) and found["n"] in (1, 22, 333) and len(found) == 2
    done = swiftchat("-p", "x", "--regex", "[a-c]{5}", *options)
    assert re.fullmatch(rb"[a-c]{5}\n", done.stdout)
