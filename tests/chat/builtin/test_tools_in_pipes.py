"""Built-in tools without a terminal to ask in: only what is named on the command line is done."""

from pathlib import Path

import pytest
from click.testing import Result

from tests.support import fake_engine
from tests.support.fake_engine import TOOL_TEMPLATE, tool_call
from tests.support.in_process import Program, failure


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    found = Program(fake_engine.make_folder(tmp_path / "model", TOOL_TEMPLATE), monkeypatch)
    found.engine.ctx_size_tokens = 20_000
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    Path("a.txt").write_text("content\n")
    return found


def run(program: Program, call: str, *options: str) -> Result:
    program.engine.answers = [{"text": call}, {"text": "Answer."}]
    return program.run("-p", "x", *options)


READ = tool_call("read", path="a.txt")
WRITE = tool_call("write", path="a.txt", content="other\n")


def test_a_tool_that_is_named_is_used(program: Program) -> None:
    result = run(program, READ, "--tools", "read,list")
    assert (result.exit_code, result.stdout) == (0, "Answer.\n")
    assert result.stderr == 'calls read(path="a.txt")\n'
    assert "<tool_response>\ncontent\n</tool_response>" in program.engine.prompt_text()
    first = program.engine.prompt_text(0)
    assert '"name": "list"' in first and '"name": "shell"' not in first


def test_all_tools_are_offered_and_none_is_used(program: Program) -> None:
    for options in (("--tools",), ("--tools", "all")):
        result = run(program, READ, *options)
        assert "warning: read was not called: --tools read allows it" in result.stderr
        assert "<tool_response>\nRefused:" in program.engine.prompt_text()
        assert '"name": "shell"' in program.engine.prompt_text(0)


def test_a_tool_that_is_not_named_does_not_exist(program: Program) -> None:
    run(program, WRITE, "--tools", "read")
    assert "There is no such tool." in program.engine.prompt_text()
    assert Path("a.txt").read_text() == "content\n"


def test_a_change_is_shown_on_stderr(program: Program) -> None:
    result = run(program, WRITE, "--tools", "write")
    assert "write a.txt (+1 −1)\n@@ from line 1 @@\n- content\n+ other\n" in result.stderr
    assert result.stdout == "Answer.\n" and Path("a.txt").read_text() == "other\n"


@pytest.mark.parametrize("allowed", [(), ("--allow-tool", "all"), ("--allow-tool", "read")])
def test_other_places_are_refused_always(program: Program, allowed: tuple[str, ...]) -> None:
    Path("../secret").write_text("secret\n")
    Path(".env").write_text("secret\n")
    Path("link").symlink_to("../secret")
    for path in ("../secret", ".env", "link", "/etc/hosts"):
        result = run(program, tool_call("read", path=path), "--tools", "read", *allowed)
        assert "which needs a y in a chat" in result.stderr, path
        assert "secret\n" not in program.engine.prompt_text().partition("<tool_response>")[2]


def test_a_name_that_is_no_text_reaches_the_model(program: Program) -> None:
    Path("\udcff").write_text("x")
    result = run(program, tool_call("list"), "--tools", "list")
    assert result.exit_code == 0 and "\ufffd  1" in program.engine.prompt_text()


def test_errors_are_results_with_their_hint(program: Program) -> None:
    run(program, tool_call("read", path="gone"), "--tools", "read")
    assert "Error: cannot read gone: No such file or directory; check the path" in (
        program.engine.prompt_text()
    )


def test_options_that_exclude_tools(program: Program) -> None:
    assert "no built-in tool 'rm'" in failure(program, "--tools", "rm", "-p", "x").message
    assert (
        "calls no tools" in failure(program, "--tools", "read", "--json-object", "-p", "x").message
    )
    for options in (("--samples", "2"), ("--beams", "2")):
        error = failure(program, "--tools", "read", "-p", "x", *options)
        assert "--tools" in error.message + error.hint


def test_a_model_without_tools_is_an_error(program: Program) -> None:
    fake_engine.make_folder(program.folder)
    assert "has no tools" in failure(program, "--tools", "read", "-p", "x").message


@pytest.mark.parametrize("option", [("--tools", "rm"), ("--mcp", "missing.json")])
def test_wrong_tools_are_an_error_before_the_model_is_opened(
    program: Program, option: tuple[str, str]
) -> None:
    program.folder = Path("no-such-model")
    message = failure(program, *option, "--offline", "-p", "x").message
    assert "no built-in tool 'rm'" in message or "missing.json" in message
