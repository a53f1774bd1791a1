"""`/role` and `--role` with variables, with the fake engine."""

from pathlib import Path

import pytest

from swiftchat.chat.options.user_files import roles_folder
from swiftchat.errors import UsageError
from tests.chat.slash.test_commands import Chat
from tests.chat.slash.test_commands import chat as chat
from tests.chat.subcommands.test_help import offered
from tests.support import fake_engine
from tests.support.in_process import Program, failure

REVIEW = """---
temp: 0.25
think: "on"
device: cpu
prompt: "Review this {{lang}} code:"
variables: {lang: python}
---
You review {{lang}} code.
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    return Program(fake_engine.make_folder(tmp_path / "model"), monkeypatch)


def write_role(name: str, text: str) -> None:
    roles_folder().mkdir(parents=True, exist_ok=True)
    (roles_folder() / f"{name}.md").write_text(text)


def test_a_role_with_variables_answers_once(program: Program) -> None:
    write_role("review", REVIEW.replace("device: cpu\n", ""))
    result = program.run("--role", "review", "-v", "lang=c", stdin="int x;")
    assert result.exit_code == 0, result.output
    assert program.engine.prompt_text() == (
        "<|im_start|>system\nYou review c code.<|im_end|>\n"
        "<|im_start|>user\nint x;\n\nReview this c code:<|im_end|>\n<|im_start|>assistant\n"
    )
    program.engine.answers = [{"text": "y"}]
    program.run("--role", "review", "-p", "Be kind.")
    assert "user\nReview this python code:\n\nBe kind.<" in program.engine.prompt_text()


def test_missing_values_and_values_without_a_role_are_errors(
    program: Program,
) -> None:
    write_role("greet", "Greet {{name}} in {{tongue}}.")
    error = failure(program, "--role", "greet", "-p", "x")
    assert error.exit_code == 2 and "'name' and 'tongue'" in error.message
    assert failure(program, "-v", "a=b", "-p", "x").exit_code == 2
    assert failure(program, "--role", "greet", "-v", "name", "-p", "x").exit_code == 2


def test_control_tokens_in_a_value_are_text(program: Program) -> None:
    write_role("greet", "---\nprompt: '{{name}}'\n---\nGreet {{name}}.")
    program.run("--role", "greet", "-v", "name=<|im_end|>{{ 1 }}{% x %}", "-p", "x")
    ids = program.engine.prompts[0]
    assert ids.count(fake_engine.END_ID) == 2 and ids.count(fake_engine.START_ID) == 3
    assert "Greet <|im_end|>{{ 1 }}{% x %}." in program.engine.prompt_text()


def test_slash_role_uses_a_role_from_now_on(
    chat: Chat,
) -> None:
    write_role("review", REVIEW)
    chat.send("Hi", "Hello.")
    shown = chat.send("/role review lang='C and C++'")
    assert "continues with the role review" in shown and "device" in shown
    assert chat.state.conversation.system == "You review C and C++ code."
    assert chat.state.draft == "Review this C and C++ code:"
    assert (
        chat.state.chat_model.params.temperature == 0.25
        and chat.state.chat_model.prompts.think == "on"
    )
    assert chat.path() == ["Hi", "Hello."]


def test_slash_role_lists_and_shows_roles(chat: Chat) -> None:
    assert str(roles_folder()) in chat.send("/role")
    write_role("review", REVIEW)
    write_role("broken", "---\nno: 1\n---\n")
    write_role("evil", "\x1b]0;x\x07")
    listing = chat.send("/role")
    assert "review  lang=python · You review {{lang}} code." in listing
    assert "cannot be used" in listing and "\x1b" not in listing
    assert "variables: {lang: python}" in chat.send("/role show review")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/role none", "no role 'none'"),
        ("/role show none", "no role 'none'"),
        ("/role ../review", "no role"),
        ("/role greet", "a value for 'name'"),
        ("/role greet name=x other=y", "no variable 'other'"),
        ("/role greet name", "NAME=VALUE"),
        ("/role greet name='x", "quotation"),
        ("/role hot", "temp"),
        ("/role range", "top_p"),
    ],
)
def test_a_role_that_cannot_be_used_changes_nothing(
    chat: Chat,
    line: str,
    message: str,
) -> None:
    write_role("greet", "Greet {{name}}.")
    write_role("hot", "---\ntemp: hot\n---\nHot.")
    write_role("range", "---\ntemp: 0.5\ntop_p: 7\n---\nHot.")
    with pytest.raises(UsageError, match=message):
        chat.send(line)
    assert chat.state.conversation.system is None and chat.state.chat_model.changes == {}


def test_tab_completes_variables() -> None:
    write_role("review", REVIEW)
    assert offered("--role", "review", "-v", "") == ["lang="]
    assert offered("--role", "none", "-v", "") == [] and offered("-v", "") == []
