"""Output style by options and environment; clipboard; import time."""

import base64
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.render.style import choose_style
from swiftchat.chat.terminal.clipboard import copy
from swiftchat.errors import UsageError
from tests.support import fake_engine


@pytest.mark.parametrize(
    ("options", "env", "at_terminal", "mode", "colored", "live"),
    [
        ({}, {}, True, "markdown", True, True),
        ({}, {}, False, "exact", False, False),
        ({"raw": True}, {}, True, "raw", False, False),
        ({"no_template": True}, {}, True, "raw", False, False),
        ({}, {"NO_COLOR": "1"}, True, "markdown", False, True),
        ({}, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, "markdown", False, True),
        ({"color": "always"}, {"NO_COLOR": "1"}, True, "markdown", True, True),
        ({"color": "never"}, {"FORCE_COLOR": "1"}, True, "markdown", False, True),
        ({"color": "always"}, {}, False, "markdown", True, False),
        ({"color": "always", "raw": True}, {}, False, "exact", False, False),
        ({}, {"FORCE_COLOR": "1"}, False, "exact", False, False),
        ({}, {"TERM": "dumb"}, True, "accessible", False, False),
        ({}, {"TERM": "dumb", "FORCE_COLOR": "1"}, True, "accessible", True, False),
        ({}, {"ACCESSIBLE": "1"}, True, "accessible", False, False),
        ({}, {"ACCESSIBLE": "0"}, True, "markdown", True, True),
        ({"accessible": True}, {}, True, "accessible", False, False),
    ],
)
def test_choose_style(
    options: dict[str, Any],
    env: dict[str, str],
    at_terminal: bool,
    mode: str,
    colored: bool,
    live: bool,
) -> None:
    style = choose_style(ChatConfig(**options), env, at_terminal)
    assert (style.mode, style.is_colored, style.is_live) == (mode, colored, live)


@pytest.mark.parametrize(
    ("env", "has_links"),
    [
        ({"VTE_VERSION": "6800"}, True),
        ({"VTE_VERSION": "4800"}, False),
        ({"VTE_VERSION": "6800", "TMUX": "/socket"}, False),
        ({"TERM_PROGRAM": "iTerm.app"}, True),
        ({"TERM_PROGRAM": "Apple_Terminal"}, False),
        ({"KITTY_WINDOW_ID": "1"}, True),
        ({"KITTY_WINDOW_ID": "1", "NO_COLOR": "1"}, False),
        ({"KITTY_WINDOW_ID": "1", "TERM": "dumb"}, False),
        ({"KITTY_WINDOW_ID": "1", "FORCE_HYPERLINK": "0"}, False),
        ({"TMUX": "/socket", "FORCE_HYPERLINK": "1"}, True),
        ({}, False),
    ],
)
def test_links_where_the_terminal_takes_them(env: dict[str, str], has_links: bool) -> None:
    assert choose_style(ChatConfig(), env, at_terminal=True).has_links == has_links
    assert not choose_style(ChatConfig(color="always"), env, at_terminal=False).has_links


def test_copy_over_ssh_sends_osc_52(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    told = copy("grün\x07", {"SSH_TTY": "/dev/pts/0"}, written.append)
    assert "may refuse it" in told
    sequence = "".join(written)
    assert sequence.startswith("\x1b]52;c;") and sequence.endswith("\x07")
    assert base64.b64decode(sequence[7:-1]).decode() == "grün␇"
    with pytest.raises(UsageError, match="too many"):
        copy("x" * 60_000, {"SSH_TTY": "/dev/pts/0"}, written.append)
    assert len(written) == 1
    # In tmux over SSH, which knows of SSH_CONNECTION only; there is no tmux to run.
    monkeypatch.setenv("PATH", "/nowhere")
    copy("text", {"SSH_CONNECTION": "1.2.3.4 1 5.6.7.8 22", "TMUX": "/socket"}, written.append)
    assert written[1] == "\x1bPtmux;\x1b\x1b]52;c;dGV4dA==\x07\x1b\\"
    copy("text" * 300, {"SSH_TTY": "/dev/pts/0", "STY": "1.screen"}, written.append)
    parts = written[2].removeprefix("\x1bP").removesuffix("\x1b\\").split("\x1b\\\x1bP")
    assert len(parts) > 1 and max(map(len, parts)) < 768
    assert base64.b64decode("".join(parts)[7:-1]) == b"text" * 300


def test_copy_uses_the_desktop_clipboard_without_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyperclip

    copied: list[str] = []
    monkeypatch.setattr(pyperclip, "copy", copied.append)
    monkeypatch.setattr(pyperclip, "paste", lambda: copied[-1])
    copy("text", {}, lambda text: pytest.fail("unexpected output"))
    assert copied == ["text"]

    # A program that fails does not say so: the terminal gets the text.
    monkeypatch.setattr(pyperclip, "paste", lambda: "")
    written: list[str] = []
    assert "may refuse it" in copy("text", {}, written.append) and len(written) == 1

    def fail(text: str) -> None:
        raise pyperclip.PyperclipException("no mechanism")

    monkeypatch.setattr(pyperclip, "copy", fail)
    with pytest.raises(UsageError, match="no clipboard program"):
        copy("text", {"TERM": "dumb"}, written.append)
    assert len(written) == 1
    assert "may refuse it" in copy("text", {"TERM": "xterm"}, written.append)


def test_copy_in_tmux_over_ssh_sets_the_buffer_of_tmux(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmux = tmp_path / "tmux"
    tmux.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/args\nexec cat > {tmp_path}/text\n')
    tmux.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    env, written = {"SSH_CONNECTION": "a b", "TMUX": "/socket"}, list[str]()
    told = copy("grün\x1b[2J" * 30_000, env, written.append)
    assert "tmux" in told and written == []
    assert (tmp_path / "args").read_text() == "load-buffer -w -\n"
    assert (tmp_path / "text").read_text() == "grün␛[2J" * 30_000


def test_the_prompt_does_not_import_slow_modules(tmp_path: Path) -> None:
    folder = fake_engine.make_folder(tmp_path / "model")
    script = (
        "import sys, swiftchat.chat.repl.loop, swiftchat.chat.precedence\n"
        "from swiftchat.chat.model.find import find_model\n"
        "sys.stderr.isatty = lambda: True  # progress bars possible\n"
        "find_model(sys.argv[1], offline=True, quiet=False)\n"
        "print(*sys.modules)"
    )
    command = [sys.executable, "-c", script, str(folder)]
    loaded = set(subprocess.run(command, capture_output=True, text=True).stdout.split())
    assert "prompt_toolkit" in loaded
    slow = {
        "rich",
        "markdown_it",
        "pygments",
        "pyperclip",
        "numpy",
        "regex",
        "jinja2",
        "filelock",
        "sqlite3",
        "yaml",
        "swiftchat.tokenizer",
        "swiftchat.weights.model.directory",
    }
    assert not loaded & slow
