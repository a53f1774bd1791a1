"""Fault 13: the process of a rank hangs.

Required: after a limit of some seconds the error names the rank and why it is given up, all ranks
are gone, what was generated is saved, and the next message starts the ranks again.

Provoked by: SIGSTOP of the second and of the first rank in the middle of an answer.
"""

import os
import signal
from pathlib import Path

from tests.support.real_chat import START_S, RealChat
from tests.support.sessions import stored_messages
from tests.support.worker_processes import has_ended, wait_until


def test_a_stopped_rank_is_named_and_the_chat_goes_on(tmp_path: Path) -> None:
    with RealChat(tmp_path / "model", "-n", "2000", tp=2) as chat:
        for rank, error in (
            (1, "error: rank 1 was stopped: SIGSTOP"),
            (0, "error: the engine process was stopped: SIGSTOP"),
        ):
            chat.terminal.type(f"question {rank}\r")
            pids = chat.ranks(2)
            chat.wait_decoding(f"question {rank}")
            os.kill(pids[rank], signal.SIGSTOP)
            chat.terminal.wait_for(
                lambda text, error=error: error in text and chat.terminal.is_at_prompt, START_S
            )
            wait_until(lambda pids=pids: all(map(has_ended, pids.values())), 60)
            (_, question, _), (_, beginning, reason) = stored_messages()[-2:]
            assert (question, reason) == (f"question {rank}", "error") and beginning
        chat.terminal.type("the last one\r")
        chat.wait_decoding("the last one")
        chat.stop()
        assert chat.leave() == 0
    assert b"Traceback" not in chat.terminal.raw
