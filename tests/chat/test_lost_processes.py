"""Ranks that die or hang are named and started again; the ranks end with their terminal."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.support.real_chat import START_S, RealChat
from tests.support.sessions import stored_messages
from tests.support.worker_processes import (
    has_ended,
    inject_fault,
    running_programs,
    wait_until,
)

KILLED = "error: rank 1 ended: signal 9 (SIGKILL)"
# What happens to a rank in the middle of an answer, and the error.
LOSSES = (
    (1, signal.SIGKILL, KILLED),
    (1, signal.SIGSTOP, "error: rank 1 was stopped: SIGSTOP"),
    (0, signal.SIGSTOP, "error: the engine process was stopped: SIGSTOP"),
)


@pytest.mark.fault(4, 13)
def test_a_lost_rank_is_named_and_the_chat_goes_on(tmp_path: Path) -> None:
    with RealChat(tmp_path / "model", "-n", "2000", tp=2) as chat:
        for number, (rank, sent, error) in enumerate(LOSSES):
            chat.terminal.type(f"question {number}\r")
            pids = chat.ranks(2)
            chat.wait_decoding(f"question {number}")
            os.kill(pids[rank], sent)
            chat.terminal.wait_for(
                lambda text, error=error: error in text and chat.terminal.is_at_prompt, START_S
            )
            wait_until(lambda pids=pids: all(map(has_ended, pids.values())), 60)
            (_, question, _), (role, beginning, reason) = stored_messages()[-2:]
            assert (question, role, reason) == (f"question {number}", "assistant", "error")
            assert beginning
        chat.terminal.type("the last one\r")
        chat.wait_decoding("the last one")
        chat.stop()
        questions = [text for role, text, _ in stored_messages() if role == "user"]
        assert questions == ["question 0", "question 1", "question 2", "the last one"]
        assert chat.leave() == 0
    assert b"Traceback" not in chat.terminal.raw


@pytest.mark.fault(4)
def test_a_rank_that_is_lost_while_it_loads_is_named_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cause = tmp_path / "cause"
    cause.touch()
    code = f"import os, pathlib\nif pathlib.Path({str(cause)!r}).exists(): os.kill(os.getpid(), 9)"
    inject_fault(monkeypatch, tmp_path / "fault", 1, code)
    with RealChat(tmp_path / "model", "-n", "8", tp=2) as chat:
        chat.terminal.type("question\r")
        chat.terminal.wait_for(KILLED, START_S)
        chat.wait_for_prompt()
        cause.unlink()
        chat.terminal.type("\r")  # the question is in the input line again
        chat.wait_answered("question")
        assert chat.leave() == 0
    assert b"Traceback" not in chat.terminal.raw


def assert_on_loopback(chat: RealChat) -> None:
    """Check all sockets of the chat's processes that listen."""
    programs = running_programs()
    assert {chat.terminal.process.pid, *chat.ranks(2).values()} <= {one.pid for one in programs}
    sockets = [found for program in programs for found in program.net_connections("inet")]
    listening = [found.laddr.ip for found in sockets if found.status == psutil.CONN_LISTEN]
    assert len(listening) >= 2  # those of gloo, torch's library for ranks on CPUs
    assert set(listening) <= {"127.0.0.1", "::1"}


@pytest.mark.fault(5, 7)
@pytest.mark.parametrize("is_loaded", [False, True])
def test_the_ranks_end_with_the_terminal(tmp_path: Path, is_loaded: bool) -> None:
    with RealChat(tmp_path / "model", tp=2) as chat:
        pids = chat.ranks(2)
        if is_loaded:
            chat.terminal.type("question\r")
            chat.wait_decoding("question")
            assert_on_loopback(chat)
        os.kill(chat.terminal.process.pid, signal.SIGKILL)
        wait_until(lambda: all(map(has_ended, pids.values())), 60)
        wait_until(lambda: not running_programs(), 60)
    if is_loaded:
        question, (role, beginning, reason) = stored_messages()
        assert question[1] == "question" and role == "assistant" and beginning and reason is None
