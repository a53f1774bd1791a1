"""The prompt loop: errors of commands and answers never end a conversation."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from swiftchat.chat.slash.registry import BY_NAME
from tests.chat.slash.test_commands import Chat, chat

__all__ = ["chat"]


def type_lines(chat: Chat, monkeypatch: pytest.MonkeyPatch, *lines: str) -> tuple[str, int]:
    """Run the loop with input lines and Ctrl-D; return its output and exit code.

    Drafts are printed.
    """
    rest = iter(lines)

    def prompt(default: str = "", pre_run: Callable[[], None] | None = None) -> str:
        print(f"draft: {default!r}")
        try:
            return next(rest)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(chat.repl._prompt, "prompt", prompt)
    code = chat.repl.run()
    return "".join(chat._capsys.readouterr()), code


def raise_key_error(*args: object) -> None:
    raise KeyError("unforeseen\x1b[2J")


def test_an_unforeseen_error_in_an_answer_restores_the_message(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swiftchat.chat.turn.turn_view.open_view", raise_key_error)
    chat.engine.answers += [{"text": "A"}]
    output, code = type_lines(chat, monkeypatch, "one")
    assert code == 0 and "internal error" in output
    assert chat.path() == [] and "draft: 'one'" in output


@pytest.mark.fault(44)
def test_an_unforeseen_error_in_a_view_keeps_the_partial_answer(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat.engine.answers += [{"text": "Half\n\n" * 20}]
    monkeypatch.setattr("swiftchat.chat.turn.turn_view.open_view", lambda *args: BrokenView())
    output, code = type_lines(chat, monkeypatch, "one")
    assert code == 0 and "internal error: RuntimeError: no view" in output
    assert chat.path()[0] == "one" and "Half".startswith(chat.path()[1][:4])
    assert chat.stored().messages[1].finish_reason == "error"


class BrokenView:
    def push(self, piece: str) -> None:
        raise RuntimeError("no view")

    def close(self, note: str = "") -> None: ...


@pytest.mark.fault(44)
def test_the_conversation_goes_on_after_every_command(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, command in BY_NAME.items():
        monkeypatch.setitem(BY_NAME, name, dataclasses.replace(command, run=raise_key_error))
    chat.engine.answers += [{"text": "First."}, {"text": "Second."}]
    named = (f"{name} x" if command.arguments else name for name, command in BY_NAME.items())
    lines = ("one", *named, "two")
    output, code = type_lines(chat, monkeypatch, *lines)
    assert code == 0 and chat.path() == ["one", "First.", "two", "Second."]
    assert output.count("error: internal error: KeyError: 'unforeseen") == len(BY_NAME)
    assert "Traceback" not in output and "\x1b[2J" not in output
    reports = re.findall(r"hint: please report it with the file\s+(\S+\.txt)", output)
    assert len(reports) == len(set(reports)) == len(BY_NAME)
    assert "in raise_key_error" in Path(reports[-1]).read_text()


@pytest.mark.fault(18)
def test_a_full_context_restores_the_question(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    question = "x" * (4096 - 19)  # and 19 tokens of the template
    chat.engine.answers += [{"text": "!"}]
    output, code = type_lines(chat, monkeypatch, question, question[1:])
    assert code == 0 and "has 4096 tokens, the context 4096" in output
    assert "/compact" in output and "/set ctx_size N" in output
    assert "/set overflow drop-oldest" in output and f"draft: {question!r}" in output
    assert chat.path() == [question[1:], "!"]


def test_debug_prints_the_traceback(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    chat.state.config = dataclasses.replace(chat.state.config, debug=True)
    monkeypatch.setitem(
        BY_NAME, "/stats", dataclasses.replace(BY_NAME["/stats"], run=raise_key_error)
    )
    output, _ = type_lines(chat, monkeypatch, "/stats")
    assert "Traceback" in output and "raise_key_error" in output


def test_an_unwritable_state_folder_is_no_second_error(
    chat: Chat, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(
        "swiftchat.chat.terminal.error_report.reports_folder", lambda: tmp_path / "file" / "errors"
    )
    monkeypatch.setitem(
        BY_NAME, "/stats", dataclasses.replace(BY_NAME["/stats"], run=raise_key_error)
    )
    output, code = type_lines(chat, monkeypatch, "/stats")
    assert code == 0 and "hint: --debug prints the traceback" in output


@pytest.mark.parametrize("editor", ["false", "/no/such/editor", "sh -c 'exit 1'", 'vi "'])
def test_a_failing_editor_changes_nothing(
    chat: Chat, monkeypatch: pytest.MonkeyPatch, editor: str
) -> None:
    monkeypatch.setenv("VISUAL", editor)
    chat.engine.answers += [{"text": "A"}]
    output, code = type_lines(chat, monkeypatch, "one", "/edit 2")
    assert code == 0 and chat.path() == ["one", "A"]
    assert output.count("error: ") == 1 and "internal error" not in output
    assert "is not changed" in output and "hint: set EDITOR" in output


@pytest.mark.parametrize(
    "line", ["/read ~nouser-x/x", "/export ~nouser-x.md", "/model ~nouser-x/m"]
)
def test_the_home_of_an_unknown_user_is_named(
    chat: Chat, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    output, code = type_lines(chat, monkeypatch, line)
    assert code == 0 and output.count("error: ") == 1 and "internal error" not in output
    assert "no home folder ~nouser-x" in output and "hint: " in output


@pytest.mark.parametrize("command", ["/model", "/read"])
def test_a_name_too_long_for_the_system(
    chat: Chat, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    output, code = type_lines(chat, monkeypatch, f"{command} {'a' * 5000}")
    assert code == 0 and output.count("error: ") == 1 and "internal error" not in output
    assert "aaaa…: File name too long" in output and "hint: " in output
