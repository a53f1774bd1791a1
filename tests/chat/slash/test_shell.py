"""`!CMD`: a command on a terminal of its own."""

import os
import threading
from pathlib import Path

import pytest

from swiftchat.chat.terminal.child import plain_text
from swiftchat.errors import UsageError
from tests.chat.slash.test_commands import Chat, chat

__all__ = ["chat"]


def test_a_command_that_closes_its_output_runs_to_its_end(chat: Chat, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    release = threading.Thread(target=(tmp_path / "pipe").write_text, args=("go\n",))
    release.start()
    command = f"exec >/dev/null 2>&1; read line < {tmp_path}/pipe; echo $line > {tmp_path}/done"
    assert "ended by" not in chat.send(f"!{command}")
    release.join()
    assert (tmp_path / "done").read_text() == "go\n"


def test_an_interrupt_ends_a_command_that_ignores_it(chat: Chat, tmp_path: Path) -> None:
    """SIGINT of another process: Ctrl-C is a key of the command's own terminal."""
    os.mkfifo(tmp_path / "pipe")
    command = f"trap '' INT; kill -INT {os.getpid()}; read line < {tmp_path}/pipe"
    assert "interrupted" in chat.send(f"!{command}")


def test_the_prompt_returns_when_the_shell_ends(chat: Chat, tmp_path: Path) -> None:
    """What is left in the background keeps the output open, goes on, and is not ended."""
    os.mkfifo(tmp_path / "pipe")
    background = f"(read line < {tmp_path}/pipe; echo $line > {tmp_path}/done; echo late)"
    assert "begun" in chat.send(f"!{background} & echo begun")
    (tmp_path / "pipe").write_text("go\n")
    while not (tmp_path / "done").exists():
        pass
    assert "late" not in "".join(chat._capsys.readouterr())


def test_the_exit_status_and_the_signal_are_told(chat: Chat) -> None:
    assert "exit status 3" in chat.send("!exit 3")
    assert "ended by SIGKILL" in chat.send("!kill -KILL $$")
    assert "interrupted" in chat.send("!kill -INT $$")
    assert "stopped, and ended" in chat.send("!kill -STOP $$")


@pytest.mark.parametrize("shell", ["/nowhere/zsh", "no-such-shell"])
def test_a_shell_that_does_not_exist(
    chat: Chat, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    monkeypatch.setenv("SHELL", shell)
    with pytest.raises(UsageError, match=f"the shell {shell} cannot be run") as error:
        chat.send("!ls")
    assert "SHELL=/bin/sh" in error.value.hint


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("a\x1b[1;31mred\x1b[0m\r\nb", "ared\nb"),
        ("\x1b]0;title\x07x\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\", "xlink"),
        ("10 %\r 50 %\r100 %\r\ndone\r\n", "100 %\ndone\n"),
        ("b\bbo\bold", "bold"),
        ("a\x1b[?1049h\x1b[2J~\r\n~\x1b[?1049lb", "ab"),
        ("a\x1b[?1049h~", "a"),
        ("\x1b(Bx\x1b=\x07\x1b[", "x"),
        ("\b\bx\r\r\n", "x\n"),
    ],
)
def test_the_text_of_an_output(output: str, text: str) -> None:
    assert plain_text(output) == text
