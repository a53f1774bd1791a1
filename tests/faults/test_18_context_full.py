"""Fault 18: the prompt does not fit into the context.

Required: an error before prefill, with the numbers and the choices, exit code 5; nothing is cut
silently. In a chat the question returns to the input line.

Provoked by: prompts that leave room for one token of the answer, for none, and that are one token
longer than the context.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import fake_engine
from tests.support.program import Program, assert_error
from tests.support.terminal import Terminal

CTX_SIZE = 256
# Tokens of the template, without those of the question; the fake model has a token for each byte.
TEMPLATE = 19


@pytest.mark.parametrize("num_tokens", [CTX_SIZE - 1, CTX_SIZE, CTX_SIZE + 1])
def test_a_prompt_is_used_whole_or_refused(
    program: Program, num_tokens: int, tmp_path: Path
) -> None:
    record = tmp_path / "record"
    question = "x" * (num_tokens - TEMPLATE)
    done = program.run("-p", question, answers=({"text": "!", "records": str(record)},))
    if num_tokens < CTX_SIZE:
        assert (done.returncode, done.stdout) == (0, b"!\n"), done.stderr
        ids = json.loads(record.read_text())
        assert len(ids) == num_tokens and question in fake_engine.text_of(ids)
    else:
        numbers = f"has {num_tokens} tokens, the context {CTX_SIZE}"
        _, hint = assert_error(done, 5, numbers)
        assert "--ctx-size" in hint and "--overflow drop-oldest" in hint
        assert not record.exists()


def test_a_full_context_restores_the_question(chat: Callable[..., Terminal]) -> None:
    terminal = chat("!")
    terminal.type("x" * (CTX_SIZE - TEMPLATE) + "\r")
    text = " ".join(terminal.wait_for("old turns out", 60).split())
    assert f"has {CTX_SIZE} tokens, the context {CTX_SIZE}" in text
    assert "/compact" in text and "/set ctx_size N" in text and "/set overflow drop-oldest" in text
    terminal.wait_for(lambda text: "x" * 70 in text.partition("hint: ")[2], 60)
    terminal.type("\x7f\r")
    terminal.wait_for("!", 60)
    terminal.type("\x04")
    assert terminal.wait_end() == 0
