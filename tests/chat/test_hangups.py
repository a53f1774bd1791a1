"""SIGTERM, SIGHUP and a closed terminal end a chat: it is saved, and its engine ends."""

import os
import pty
import signal
import subprocess
import termios
from pathlib import Path

import psutil
import pytest

from swiftchat.chat.history.store import sessions_path
from tests.support.program import Program
from tests.support.remote_engine import chat_model_folder
from tests.support.serve_processes import SWIFTCHAT
from tests.support.sessions import stored_messages
from tests.support.terminal import EMULATED, Terminal
from tests.support.worker_processes import wait_until

SLOW = {"text": "A slow answer that goes on. " * 400, "delay_s": 0.01}


@pytest.mark.fault(36)
@pytest.mark.parametrize(
    ("number", "code", "busy"), [(signal.SIGTERM, 143, True), (signal.SIGHUP, 129, False)]
)
def test_the_terminal_is_restored_and_the_answer_saved(
    program: Program, number: int, code: int, busy: bool
) -> None:
    command = " ".join(f"'{part}'" for part in program.command(SLOW))
    script = (
        f"echo $$; (echo $BASHPID > '{program.folder}/pid'; exec {command}); echo code $?; read -r"
    )
    terminal = Terminal("bash", ["-c", script])
    try:
        terminal.wait_for(">>>", 60)
        if busy:
            terminal.type("tell me\r")
            terminal.wait_for(lambda text: text.count("slow answer") > 3, 60)
        os.kill(int((program.folder / "pid").read_text()), number)
        terminal.wait_for(f"code {code}", 60)
        modes = termios.tcgetattr(terminal.process.child_fd)[3]
        assert modes & termios.ECHO and modes & termios.ICANON
        assert terminal.raw.rfind(b"\x1b[?2004l") > terminal.raw.rfind(b"\x1b[?2004h")
        assert b"Traceback" not in terminal.raw
    finally:
        terminal.process.close(force=True)
    if busy:
        question, (role, content, reason) = stored_messages()
        assert question == ("user", "tell me", None) and (role, reason) == ("assistant", None)
        assert content.count("slow") > 1 and str(SLOW["text"]).startswith(content)


@pytest.mark.fault(36)
@pytest.mark.parametrize("is_busy", [True, False])
def test_the_first_failure_of_a_closed_terminal_ends_a_chat(
    program: Program, is_busy: bool
) -> None:
    """Also before SIGHUP: this terminal controls no process, so that the system sends none."""
    own, theirs = pty.openpty()
    with subprocess.Popen(
        program.command(SLOW),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, **EMULATED},
        start_new_session=True,
    ) as process:
        os.close(theirs)
        terminal = Terminal.of(own)
        terminal.wait_for(">>>", 60)
        if is_busy:
            terminal.type("tell me\r")
            terminal.wait_for(lambda text: text.count("slow answer") > 3, 60)
        os.close(own)
        assert process.wait(60) == 129
    if is_busy:
        _, (role, content, _) = stored_messages()
        assert role == "assistant" and content.count("slow") > 1


@pytest.mark.fault(36)
def test_a_closed_terminal_ends_the_engine(tmp_path: Path) -> None:
    folder = chat_model_folder(tmp_path / "model")
    # An answer without end: the context slides, and end tokens are banned.
    options = ("-m", str(folder), "--device", "cpu", "--overflow", "sliding")
    options += ("--min-tokens", "1000000")
    terminal = Terminal(SWIFTCHAT[0], [*SWIFTCHAT[1:], *options])
    terminal.wait_for(">>>", 60)
    terminal.type("tell me\r")
    chat = psutil.Process(terminal.process.pid)

    def is_answering() -> bool:
        terminal.look()
        return sessions_path().exists() and any(
            role == "assistant" and text for role, text, _ in stored_messages()
        )

    wait_until(is_answering, 120)
    workers = chat.children(recursive=True)
    # The `close` method of the process would send signals itself.
    terminal.process.ptyproc.fileobj.close()
    terminal.process.closed = terminal.process.ptyproc.closed = True
    assert terminal.process.wait() == 129
    wait_until(lambda: not any(worker.is_running() for worker in workers), 60)
    (_, question, _), (role, answer, reason) = stored_messages()
    assert (question, role, reason) == ("tell me", "assistant", None) and answer
