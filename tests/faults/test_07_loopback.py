"""Fault 7: a process listens on a network interface.

Required: every socket that listens is on loopback; torch's own store would listen on all
interfaces.

Provoked by: a chat with two ranks; all sockets of all its processes are listed while it answers.
"""

from pathlib import Path

import psutil

from tests.support.real_chat import RealChat
from tests.support.worker_processes import running_programs


def test_all_sockets_of_a_chat_are_on_loopback(tmp_path: Path) -> None:
    with RealChat(tmp_path / "model", tp=2) as chat:
        chat.terminal.type("question\r")
        chat.wait_decoding("question")
        programs = running_programs()
        assert {chat.terminal.process.pid, *chat.ranks(2).values()} <= {one.pid for one in programs}
        sockets = [found for program in programs for found in program.net_connections("inet")]
        listening = [found.laddr.ip for found in sockets if found.status == psutil.CONN_LISTEN]
        assert len(listening) >= 2  # those of gloo, torch's library for ranks on CPUs
        assert set(listening) <= {"127.0.0.1", "::1"}
