"""Fault 4: the process of a rank dies.

Required: the error names the rank and the signal within 5 s, all ranks are gone, what was generated
is saved, and the next message starts the ranks again.

Provoked by: SIGKILL of one of two ranks, while it loads and in the middle of an answer.
`tests/engine/ranks/test_spmd.py` has prefill and four ranks.
"""

import os
import signal
from pathlib import Path

from tests.support.real_chat import START_S, RealChat
from tests.support.sessions import stored_messages
from tests.support.worker_processes import has_ended, wait_until

KILLED = "error: rank 1 ended: signal 9 (SIGKILL)"


def test_a_killed_rank_is_named_and_the_chat_goes_on(tmp_path: Path) -> None:
    with RealChat(tmp_path / "model", "-n", "2000", tp=2) as chat:
        pids = chat.ranks(2)
        os.kill(pids[1], signal.SIGKILL)  # while it loads
        chat.terminal.type("first\r")
        chat.terminal.wait_for(KILLED, START_S)
        wait_until(lambda: all(map(has_ended, pids.values())), 60)
        chat.wait_for_prompt()
        chat.terminal.type("\r")  # the question is in the input line again
        pids = chat.ranks(2)
        chat.wait_decoding("first")
        os.kill(pids[1], signal.SIGKILL)  # in the middle of the answer
        chat.terminal.wait_for(lambda text: KILLED in text and chat.terminal.is_at_prompt, START_S)
        wait_until(lambda: all(map(has_ended, pids.values())), 60)
        question, (role, beginning, reason) = stored_messages()
        assert question == ("user", "first", None)
        assert (role, reason) == ("assistant", "error") and beginning
        chat.terminal.type("second\r")
        chat.wait_decoding("second")
        chat.stop()
        assert [text for _, text, _ in stored_messages()][:3] == ["first", beginning, "second"]
        assert chat.leave() == 0
    assert b"Traceback" not in chat.terminal.raw
