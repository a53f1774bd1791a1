"""Fault 43: text is pasted or typed while an answer, a load or a command runs.

Required: it is kept as a draft, never sent and never left to the shell; Ctrl-C works behind a full
input queue.

Provoked by: up to a megabyte of shell commands and slash commands pasted into a chat that was
started by an interactive shell, at random moments, before the chat ends in different ways.
"""

import random

import pytest

from tests.support.paste_trials import ENDS, MOMENTS, Trial, run_trial


@pytest.mark.parametrize("number", range(len(MOMENTS)))
def test_a_large_paste_is_never_sent_and_never_runs(number: int) -> None:
    """A megabyte at the prompt; elsewhere many times what the system keeps for a terminal.

    `python -m tests.support.paste_trials` runs more of them.
    """
    delay_s = random.Random(number).uniform(0, 0.6)
    moment, end = MOMENTS[number], ENDS[number % len(ENDS)]
    size = 1 << 20 if moment == "prompt" else 1 << 16
    assert run_trial(Trial(moment, end, delay_s, size)) == ""
