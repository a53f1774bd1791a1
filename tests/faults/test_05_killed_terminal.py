"""Fault 5: the process of the terminal is killed.

Required: the engine's processes end within 5 s; what was generated is saved.

Provoked by: SIGKILL of a chat with two ranks, while they load and in the middle of an answer.
"""

import os
import signal
from pathlib import Path

import pytest

from tests.support.real_chat import RealChat
from tests.support.sessions import stored_messages
from tests.support.worker_processes import has_ended, running_programs, wait_until


@pytest.mark.parametrize("is_loaded", [False, True])
def test_the_ranks_end_with_the_terminal(tmp_path: Path, is_loaded: bool) -> None:
    with RealChat(tmp_path / "model", tp=2) as chat:
        pids = chat.ranks(2)
        if is_loaded:
            chat.terminal.type("question\r")
            chat.wait_decoding("question")
        os.kill(chat.terminal.process.pid, signal.SIGKILL)
        wait_until(lambda: all(map(has_ended, pids.values())), 60)
        wait_until(lambda: not running_programs(), 60)
    if is_loaded:
        question, (role, beginning, reason) = stored_messages()
        assert question[1] == "question" and role == "assistant" and beginning and reason is None
