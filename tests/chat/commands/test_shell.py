"""`!CMD`: how long a command may run."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from swiftchat.chat.commands import attach
from tests.chat.commands.test_commands import Chat, chat

__all__ = ["chat"]


def test_a_command_that_closes_its_output_runs_to_its_end(
    chat: Chat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends when the test writes to the pipe, after the program began to wait for it."""
    os.mkfifo(tmp_path / "pipe")
    wait, limits = subprocess.Popen.wait, []

    def wait_then_release(process: "subprocess.Popen[bytes]", timeout: float | None = None) -> int:
        if not limits:
            (tmp_path / "pipe").write_text("go\n")
        limits.append(timeout)
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait_then_release)
    command = f"exec >/dev/null 2>&1; read line < {tmp_path}/pipe; echo $line > {tmp_path}/done"
    assert "ended by" not in chat.send(f"!{command}")
    assert limits[0] is None and (tmp_path / "done").read_text() == "go\n"


@pytest.mark.parametrize(
    "place", [(attach, "_decoded"), (subprocess.Popen, "wait")], ids=["output", "no output"]
)
def test_an_interrupted_command_that_goes_on_is_killed(
    chat: Chat, place: tuple[object, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the output is read, and while the program waits for a command without output."""
    monkeypatch.setattr(attach, "_END_LIMIT_S", 0.1)
    os.mkfifo(tmp_path / "pipe")
    original, processes = getattr(*place), []

    def interrupted_once(first: object, *arguments: object) -> object:
        processes.append(first)
        if len(processes) == 1:
            raise KeyboardInterrupt
        return original(first, *arguments)

    monkeypatch.setattr(*place, interrupted_once)
    command = f"trap '' INT; exec >/dev/null 2>&1; read line < {tmp_path}/pipe"
    assert "interrupted" in chat.send(f"!{command}")
    if place[1] == "wait":
        assert isinstance(processes[0], subprocess.Popen)
        assert processes[0].returncode == -signal.SIGKILL
