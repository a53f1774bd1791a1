"""`swiftchat tokens`: counts, ids and pieces in a pipe and on a terminal."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from swiftchat.chat.subcommands.tokens import colored, marked, separated
from tests.support import fake_engine
from tests.support.terminal import Terminal

SWIFTCHAT = [sys.executable, "-m", "swiftchat.chat"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fake_engine.make_folder(tmp_path / "model", merges=("h e", "Ġ h"))


def run(folder: Path, *args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [*SWIFTCHAT, "tokens", "-m", str(folder), *args]
    return subprocess.run(command, input=stdin, capture_output=True)


def test_counts_a_file_or_stdin(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("he hi")
    result = run(folder, str(tmp_path / "text"))
    assert (result.returncode, result.stdout, result.stderr) == (0, b"3\n", b"")
    assert run(folder, "-", stdin=b"").stdout == b"0\n"
    assert run(folder / "tokenizer.json", "-", stdin=b"he").stdout == b"1\n"
    assert run(folder, "-", stdin=b"aaaa\xff").stdout == b"7\n", "U+FFFD is three bytes"


def test_control_tokens_are_ordinary_text(folder: Path) -> None:
    ids = json.loads(run(folder, "-", "--json", "--ids", stdin=b"<|im_end|>").stdout)["ids"]
    assert ids == list(b"<|im_end|>")


def test_ids_and_pieces_move_the_count_to_stderr(folder: Path) -> None:
    result = run(folder, "-", "--ids", stdin=b"he hi")
    assert (result.stdout, result.stderr) == (b"258 259 105\n", b"3\n")
    result = run(folder, "-", "--show", stdin="he h\n你".encode())
    assert result.stdout.decode() == "he|·h|⏎\n|\\xe4|\\xbd|\\xa0\n"
    assert run(folder, "-", "--show", stdin=b"he\n").stdout.decode() == "he|⏎\n"


def test_json(folder: Path) -> None:
    assert json.loads(run(folder, "-", "--json", stdin=b"he hi").stdout) == {
        "tokens": 3,
        "characters": 5,
    }
    result = run(folder, "-", "--json", "--ids", "--show", stdin=b"he hi")
    report = json.loads(result.stdout)
    assert (report["ids"], report["pieces"]) == ([258, 259, 105], ["he", " h", "i"])


def test_white_space_and_control_characters_become_glyphs() -> None:
    assert marked(" \t\r\x1b[2J\u3000\u202e\n") == "·→␍␛[2J␣\ufffd⏎\n"
    assert separated(["a", " b"]) == "a|·b"
    assert colored(["a", "b", "c\n", "\n\n"]) == (
        "a\x1b[30;46mb\x1b[0mc⏎\n\x1b[30;46m⏎\x1b[0m\n\x1b[30;46m⏎\x1b[0m\n"
    )


@pytest.mark.parametrize(
    ("env", "has_colors"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colors_on_a_terminal(
    folder: Path, tmp_path: Path, env: dict[str, str], has_colors: bool
) -> None:
    (tmp_path / "text").write_text("he hi\x1b]52;c;eA==\x07")
    args = [*SWIFTCHAT[1:], "tokens", "-m", str(folder), "--show", str(tmp_path / "text")]
    terminal = Terminal(sys.executable, args, **env)
    terminal.wait_for("he·hi" if has_colors else "he|·h|i")
    assert terminal.wait_end() == 0
    assert (b"\x1b[30;46m" in terminal.raw) == has_colors
    assert b"\x1b]" not in terminal.raw and b"\x07" not in terminal.raw


def test_exit_codes(folder: Path, tmp_path: Path) -> None:
    def code(result: subprocess.CompletedProcess[bytes]) -> int:
        assert result.stderr.startswith(b"error: ") and result.stdout == b""
        return result.returncode

    assert code(run(folder)) == 2
    assert code(run(folder, str(tmp_path / "none"))) == 8
    assert code(run(Path("no/such-model"), "-", "--offline")) == 3
    (folder / "tokenizer.json").write_text("{}")
    assert code(run(folder, "-")) == 7


def test_no_torch_and_no_engine(folder: Path) -> None:
    script = (
        f"import sys; sys.argv = ['swiftchat', 'tokens', '-m', {str(folder)!r}, '-']\n"
        "from swiftchat.chat.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'torch', 'jinja2', 'transformers', 'prompt_toolkit'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, input=b"x", capture_output=True, env={**os.environ})
    assert result.returncode == 0, result.stderr
