"""Fault 11: Ctrl-C while an answer is generated.

Required: the answer stops within 200 ms, its beginning is kept and marked as interrupted, the
prompt is back, and the next turn has both in its prompt.

Provoked by: Ctrl-C in a terminal. The answer would go on for minutes, so that a busy machine may
need longer than 200 ms to stop it.
"""

import json
from collections.abc import Callable
from pathlib import Path

from tests.support import fake_engine
from tests.support.sessions import stored_messages
from tests.support.terminal import Terminal

SLOW = {"text": "A slow answer that goes on. " * 1000, "delay_s": 0.01}


def test_ctrl_c_keeps_the_beginning_of_the_answer(
    chat: Callable[..., Terminal], tmp_path: Path
) -> None:
    record = tmp_path / "record"
    terminal = chat(SLOW, {"text": "Next.", "records": str(record)})
    terminal.type("tell me\r")
    terminal.wait_for("slow answer", 60)
    terminal.type_now("\x03")
    terminal.wait_for("stopped", 60)
    terminal.wait_for(lambda text: terminal.is_at_prompt, 60)
    question, (role, content, reason) = stored_messages()
    assert question == ("user", "tell me", None)
    assert (role, reason) == ("assistant", "interrupt")
    assert "slow answer" in content and SLOW["text"].startswith(content)  # type: ignore[attr-defined]
    terminal.type("and then?\r")
    terminal.wait_for("Next.", 60)
    turns = [("user", "tell me"), ("assistant", content), ("user", "and then?")]
    expected = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
    assert (
        fake_engine.text_of(json.loads(record.read_text())) == f"{expected}<|im_start|>assistant\n"
    )
    terminal.type("\x04")
    assert terminal.wait_end() == 0
    assert [reason for _, _, reason in stored_messages()] == [None, "interrupt", None, "stop"]
