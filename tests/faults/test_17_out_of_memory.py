"""Fault 17: the memory is exhausted in the middle of an answer.

Required: that turn ends with an error and its beginning is kept; the same engine answers the next
turn.

Provoked by: an allocation of the engine that fails once, in the fifth step.
"""

from pathlib import Path

import pytest

from tests.support.real_chat import RealChat
from tests.support.sessions import stored_messages
from tests.support.worker_processes import inject_fault

_FAILS_ONCE = """
import swiftchat.engine.generation.engine as engine
local_logits, calls = engine.Engine.local_logits, iter(range(10**9))
def failing(*args):
    if next(calls) == 4:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 B")
    return local_logits(*args)
engine.Engine.local_logits = failing
"""


def test_out_of_memory_ends_only_that_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inject_fault(monkeypatch, tmp_path / "fault", 0, _FAILS_ONCE)
    with RealChat(tmp_path / "model", "-n", "200") as chat:
        chat.terminal.type("one\r")
        chat.terminal.wait_for("error: out of memory: DefaultCPUAllocator", 120)
        hint = "hint: use a smaller --ctx-size or start a new conversation"
        chat.terminal.wait_for(lambda text: hint in " ".join(text.split()), 60)
        worker = chat.worker.pid
        chat.wait_for_prompt()
        (question, (role, beginning, reason)) = stored_messages()
        assert question[1] == "one" and role == "assistant" and beginning
        assert reason == "error"
        chat.ask("two")
        assert chat.worker.pid == worker
        assert [text for role, text, _ in stored_messages() if role == "user"] == ["one", "two"]
        assert chat.leave() == 0
    assert b"Traceback" not in chat.terminal.raw
