"""Keys, history and completion of the input line, with prompt_toolkit reading from a pipe."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.layout.controls import BufferControl
from prompt_toolkit.layout.processors import TransformationInput
from prompt_toolkit.output import DummyOutput

from swiftchat.chat.repl.input import InputLine, open_history
from swiftchat.chat.repl.message import continued, message_of
from swiftchat.chat.repl.pastes import Pastes, ShownLine
from swiftchat.chat.slash.registry import BY_NAME, complete_argument

Read = Callable[..., str]
SUMMARIES = {name: command.summary for name, command in BY_NAME.items()}


def words(name: str) -> dict[str, str]:
    sessions = {"my trip": "To Rome", "0a1b2c3d": "To Paris"}
    return sessions if name == "/resume" else dict(complete_argument(None, name))  # type: ignore[arg-type]


@pytest.fixture
def pipe() -> Iterator[PipeInput]:
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        yield pipe


@pytest.fixture
def read(pipe: PipeInput, tmp_path: Path) -> Read:
    session = InputLine(SUMMARIES, words, tmp_path / "state" / "history", lambda: [])

    def read(keys: str) -> str:
        pipe.send_text(keys)
        return session.prompt()

    return read


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("hello\r", "hello"),
        ("a\nb\r", "a\nb"),
        ("a\x1b\rb\r", "a\nb"),
        ("a\\\rb\r", "a\nb"),
        ("go\x1b[D\\\r", "g\\o"),  # a backslash that is not at the end is text
        ('"""\ra\rb"""\r', '"""\na\nb"""'),
        ('what does """ mean\r', 'what does """ mean'),
        ("\x1b[200~one \\\ntwo\nthree\x1b[201~\r", "one \\\ntwo\nthree"),
        ("unwanted\x03wanted\r", "wanted"),
        ("one\ntwo\x03three\r", "three"),
    ],
)
def test_keys(read: Read, keys: str, text: str) -> None:
    assert read(keys) == text


END_SIGNAL = """
import asyncio, os, signal
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.layout.controls import BufferControl
from prompt_toolkit.layout.processors import TransformationInput
from prompt_toolkit.output import DummyOutput
from swiftchat.chat.repl.input import InputLine
from swiftchat.chat.terminal.signals import install_signal_handlers

install_signal_handlers()

def complete(name):
    if {in_task}:
        assert asyncio.current_task() is not None
        signal.raise_signal({number})
    return {{}}

def toolbar():
    if not {in_task}:
        signal.raise_signal({number})
    return []

with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
    pipe.send_text("/set \\t")
    InputLine({{}}, complete, None, toolbar).prompt()
"""


@pytest.mark.parametrize("in_task", [True, False])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_end_the_prompt_without_a_report(number: int, code: int, in_task: bool) -> None:
    """Also while prompt_toolkit runs a task, which would print the exception as its own."""
    script = END_SIGNAL.format(number=int(number), in_task=in_task)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


PASTED = "".join(f"line {i}\n" for i in range(30))


def test_long_pastes_are_folded_until_sent(pipe: PipeInput, tmp_path: Path) -> None:
    file, other = tmp_path / "history", PASTED.replace("9", "x")
    line = InputLine(SUMMARIES, words, file, lambda: [])

    def read(keys: str, default: str = "") -> str:
        pipe.send_text(keys)
        return line.prompt(default)

    keys = f"sum up: \x1b[200~{PASTED}\x1b[201~ and \x1b[200~{other}\x1b[201~\r"
    assert read(keys) == f"sum up: {PASTED} and {other}"
    assert "line 29" in file.read_text() and "[pasted" not in file.read_text()
    assert read("\x1b[A\r").startswith("sum up: line 0")  # recalled as placeholder, sent as text
    assert read("\x7fx\r", PASTED) == "x"  # a placeholder is deleted as a whole
    assert read("\x01say \x05!\r", PASTED) == f"say {PASTED}!"
    assert read("\x1b[200~a\r\nb\x1b[201~\r") == "a\nb"
    for typed in ("[pasted 30 lines]", "see [pasted 30 lines, 2]"):  # by the user, not by a paste
        assert read(f"{typed}\r") == read("\r", typed) == typed
        copied = f"sum up: [pasted 30 lines] {typed}"  # from the screen
        assert read(f"\x1b[200~{copied}\x1b[201~\r") == copied
        assert read(f"\x1b[200~{PASTED}\x1b[201~{typed}\r") == PASTED + typed
    assert read("\r", "no \ud800 placeholder") == "no \ufffd placeholder"
    assert read("/sy\x1b[200~" + PASTED + "\x1b[201~/\t\r") == f"/sy{PASTED}/"


LONG_LINE = " ".join(f"word{i}" for i in range(30_000))


def test_a_long_line_is_folded_wherever_it_comes_from(pipe: PipeInput, tmp_path: Path) -> None:
    """Drawing it would take seconds at each key."""
    file = tmp_path / "history"
    file.write_text(f"\n# 2026\n+word first\n\n# 2026\n+{LONG_LINE}\n")
    line, lengths = InputLine(SUMMARIES, words, file, lambda: []), list[int]()
    line._session.default_buffer.on_text_changed += lambda buffer: lengths.append(len(buffer.text))

    def read(keys: str, default: str = "") -> str:
        pipe.send_text(keys)
        return line.prompt(default)

    assert read("\x1b[A!\r") == f"{LONG_LINE}!"
    assert read("word\x1b[A\x1b[A\x1b[A\r") == "word first"  # the search goes on behind it
    assert read("\r", LONG_LINE) == LONG_LINE  # /edit
    pieces = [LONG_LINE[i : i + 3000] for i in range(0, 30_000, 3000)]
    pasted = "".join(f"\x1b[200~{piece}\x1b[201~" for piece in pieces)
    assert read(f"{pasted}\r") == LONG_LINE[:30_000]
    assert max(lengths) <= 10_000


def test_the_editor_gets_the_whole_text(
    pipe: PipeInput, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor, seen = tmp_path / "editor", tmp_path / "seen"
    editor.write_text(f"#!/bin/sh\ncp $1 {seen}\n")
    editor.chmod(0o700)
    monkeypatch.setenv("VISUAL", str(editor))
    line = InputLine(SUMMARIES, words, None, lambda: [])
    buffer = line._session.default_buffer

    def send_when_edited(_: object) -> None:
        if seen.exists():
            pipe.send_text("\r")
        line._session.app.invalidate()

    pipe.send_text("\x18\x05")
    line._session.app.after_render += send_when_edited
    assert line.prompt(LONG_LINE) == LONG_LINE and seen.read_text() == LONG_LINE
    assert len(buffer.text) < 10_000


@pytest.mark.parametrize("width", [20, 80])
def test_the_cursor_moves_over_a_label_as_over_one_character(width: int) -> None:
    pastes = Pastes()
    text = f"see {pastes.fold_paste(PASTED)} and {pastes.fold_paste(PASTED.upper())}!"
    drawn = ShownLine(pastes).apply_transformation(
        TransformationInput(BufferControl(), Document(), 0, lambda i: i, [("", text)], width, 10)
    )
    shown = "".join(part for _, part, *_ in drawn.fragments)
    assert shown == "see [pasted 30 lines] and [pasted 30 lines, 2]!"
    ends = [4, 21, 26, 46, 47]
    positions = [4, 5, 10, 11, 12]
    assert [drawn.source_to_display(position) for position in positions] == ends
    assert [drawn.display_to_source(column) for column in ends] == positions
    assert drawn.display_to_source(10) == 4


def test_of_a_long_line_in_a_search_the_beginning_is_drawn() -> None:
    drawn = ShownLine(Pastes()).apply_transformation(
        TransformationInput(BufferControl(), Document(), 0, lambda i: i, [("", LONG_LINE)], 80, 10)
    )
    assert sum(len(part) for _, part, *_ in drawn.fragments) == 10_000
    assert drawn.source_to_display(len(LONG_LINE)) == 10_000


def test_vi_keys(pipe: PipeInput) -> None:
    line = InputLine(SUMMARIES, words, None, lambda: [], is_vi=True)
    pipe.send_text("wrong words\x1bbcwtext\x1b0x\r")
    assert line.prompt() == "rong text"


def test_ctrl_c_and_ctrl_d_on_an_empty_line(read: Read) -> None:
    with pytest.raises(KeyboardInterrupt):
        read("\x03")
    with pytest.raises(EOFError):
        read("\x04")
    assert read("text\x04\r") == "text"


def test_history_by_arrow_prefix_and_search(read: Read) -> None:
    for text in ("alpha", "beta", "almond"):
        read(f"{text}\r")
    assert read("\x1b[A\x1b[A\r") == "beta"
    assert read("al\x1b[A\x1b[A\r") == "alpha"
    assert read("\x12bet\r\r") == "beta"
    assert read("alph\x12\x03x\r") == "alphx"  # Ctrl-C ends the search, not the line


def test_the_history_file_has_no_passwords(tmp_path: Path) -> None:
    history = open_history(tmp_path / "history", Pastes())
    typed = "/read https://me:pa@ss@host.example/a?b https://TOKEN@git.example/x@y and a@b.example"
    history.append_string(typed)
    text = (tmp_path / "history").read_text()
    assert "+/read https://host.example/a?b https://git.example/x@y and a@b.example\n" in text
    assert history.get_strings() == [typed], "in this chat it can be sent again"


def test_the_history_file_replaces_invalid_bytes(tmp_path: Path) -> None:
    file = tmp_path / "history"
    open_history(file, Pastes()).append_string("caf\udce9")
    assert "caf?" in file.read_text()
    assert list(open_history(file, Pastes()).load_history_strings()) == ["caf?"]


def test_an_unwritable_history_prints_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    open_history(tmp_path / "file" / "history", Pastes()).append_string("x")
    assert "history is not saved" in capsys.readouterr().err


def completions(pipe: PipeInput, text: str) -> list[str]:
    completer = InputLine(SUMMARIES, words, None, lambda: []).completer
    found = completer.get_completions(Document(text), CompleteEvent(completion_requested=True))
    return [completion.text for completion in found]


def test_tab_completes_commands_arguments_and_paths(pipe: PipeInput, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    assert completions(pipe, "/sy") == ["/system"]
    assert completions(pipe, "/set pres") == ["presence_penalty"]
    assert completions(pipe, "/show t") == ["template"]
    assert completions(pipe, "/set parameter top_k") == ["top_k"]
    assert completions(pipe, "/resume ") == ["my trip", "0a1b2c3d"]
    assert completions(pipe, "/resume my t") == ["my trip"]
    assert completions(pipe, f"/read {tmp_path}/no") == ["tes.txt"]
    assert completions(pipe, f"compare {tmp_path}/no") == ["tes.txt"]
    assert completions(pipe, f"{tmp_path}/no") == ["tes.txt"]
    assert completions(pipe, "plain words") == []


def test_tab_describes_each_command(pipe: PipeInput) -> None:
    completer = InputLine(SUMMARIES, words, None, lambda: []).completer
    event = CompleteEvent(completion_requested=True)
    for typed in ("/", "/set ", "/help "):
        found = list(completer.get_completions(Document(typed), event))
        assert len(found) > 5 and all(one.display_meta_text for one in found), typed
    (about,) = completer.get_completions(Document("/und"), event)
    assert about.display_meta_text == BY_NAME["/undo"].summary


def test_tab_completes_paths_as_shell_words(
    pipe: PipeInput, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `!` and `/read`, which split their line at blanks unless they are quoted."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my folder").mkdir()
    (tmp_path / "my folder" / "it's $1.txt").write_text("text")
    assert completions(pipe, "!cat my") == [r"\ folder/"]
    assert completions(pipe, "!cat x | sort 'my f") == ["older/"]
    assert completions(pipe, "/read other.txt my") == [r"\ folder/"]
    for start, quoted in (
        (r"my\ folder/it", r"\'s\ \$1.txt"),
        ('"my folder/it', r"'s \$1.txt"),
        ("'my folder/it", r"'\''s $1.txt"),
    ):
        assert completions(pipe, f"/read {start}") == completions(pipe, f"!cat {start}") == [quoted]
        word = start + quoted + (start[0] if start[0] in "'\"" else "")
        assert subprocess.check_output(["sh", "-c", f"cat {word}"]) == b"text"
    assert completions(pipe, "!") == completions(pipe, "!my") == []


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("one \\\ntwo", "one \\\ntwo"),  # pasted: the backslash is text
        ('"""\na """ b\n"""', 'a """ b'),
        ('x """', 'x """'),
    ],
)
def test_quotes_and_backslashes_inside_pastes_are_text(typed: str, message: str) -> None:
    assert continued(typed, 0) is None
    assert message_of(typed) == message


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("hello", "hello"),
        ('"""\na\nb\n"""', "a\nb"),
        ('"""a"""', "a"),
        ('say """a""" now', 'say """a""" now'),
    ],
)
def test_messages(typed: str, message: str) -> None:
    assert continued(typed, 0) is None
    assert message_of(typed) == message


@pytest.mark.parametrize("typed", ["one \\", '"""', '"""a\nb'])
def test_unfinished_messages(typed: str) -> None:
    assert continued(typed, 0) is not None


@pytest.mark.fault(28)
def test_the_history_is_private(tmp_path: Path) -> None:
    file = tmp_path / "state" / "history"
    open_history(file, Pastes()).append_string("secret")
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert "secret" in file.read_text()
