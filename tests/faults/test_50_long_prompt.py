"""Fault 50: the prompt is long and the processor slow.

Required: progress is shown within a second and at least every second after it; Ctrl-C brings the
prompt back within half a second.

Provoked by: a message of 6,000 tokens to a model of 100 million parameters on one thread. The
limits are checked without a clock: progress is shown many times before the first token, and what
Ctrl-C leaves uncomputed is most of the message.
"""

import re
from itertools import pairwise
from pathlib import Path

from tests.support import fake_engine
from tests.support.serve_processes import SWIFTCHAT
from tests.support.terminal import Terminal

SHAPE = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
}
NUM_CHARS = 6000
ENDED = "ended at max_tokens = 3"
PROGRESS = re.compile(rb"computing the prompt (\d+) %")


def shown_progress(terminal: Terminal) -> list[int]:
    """Return the percentages that were shown, in order, without repetitions."""
    return list(dict.fromkeys(map(int, PROGRESS.findall(terminal.raw))))


def test_progress_is_shown_and_ctrl_c_works(tmp_path: Path) -> None:
    folder = fake_engine.make_folder(tmp_path / "model", **SHAPE)
    dummy = ("--dummy", str(folder / "config.json"), "--threads", "1")
    options = ("-m", str(folder), *dummy, "-n", "3", "--min-tokens", "3")
    terminal = Terminal(SWIFTCHAT[0], [*SWIFTCHAT[1:], *options])
    terminal.wait_for(">>>", 60)
    terminal.type("hi\r")  # waits until the model is loaded
    terminal.wait_for(ENDED, 120)
    terminal.wait_for(lambda text: terminal.is_at_prompt, 60)
    terminal.type_now("\x1b[200~" + "words " * (NUM_CHARS // 6) + "\x1b[201~")
    terminal.wait_for("[pasted", 60)
    terminal.type("\r")
    terminal.wait_for(lambda text: len(shown_progress(terminal)) >= 3, 120)
    terminal.type_now("\x03")
    terminal.wait_for("the message is in the input line again", 60)
    shown = shown_progress(terminal)
    assert shown[-1] < 50, "the rest of the message must not be computed"
    assert max(after - before for before, after in pairwise(shown)) <= 20
    # The message is the draft.
    terminal.wait_for(lambda text: text.count("[pasted") == 2 and terminal.is_at_prompt, 60)
    terminal.type_now("\x15")  # clears the line
    terminal.wait_for(lambda text: text.count("[pasted") == 1, 60)
    terminal.type("next\r")
    terminal.wait_for(lambda text: text.count(ENDED) == 2, 120)
    terminal.type("\x04")
    assert terminal.wait_end() == 0
