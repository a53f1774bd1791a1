"""How often engines of a model were started within an hour, and the hint that one may stay."""

import os
import time
from pathlib import Path

import platformdirs

from swiftchat.chat.terminal.output import print_notice
from swiftchat.weights.files.private import create_private_folder, open_private

_WINDOW_S = 3600.0
_NUM_FOR_HINT = 3
_HINT = (
    "hint: this model was loaded three times within an hour; --keep-alive 10m (or keep_alive = "
    '"10m" in the configuration file) leaves it loaded for the next time'
)


def count_cold_start(name: str) -> None:
    """Record that a model was loaded; print a hint at the third time within an hour.

    Nothing happens if the file of the starts cannot be written.
    """
    file = platformdirs.user_state_path("swiftchat") / "starts"
    try:
        num_starts = _recorded(file, name, time.time())
    except OSError:
        return
    if num_starts == _NUM_FOR_HINT:
        print_notice(_HINT)


def _recorded(file: Path, name: str, now: float) -> int:
    """Add a start to the file, from which old ones are removed; return how many the model has."""
    create_private_folder(file.parent)
    name = " ".join(name.split())
    with os.fdopen(open_private(file, os.O_RDWR), "r+", encoding="utf-8", errors="replace") as old:
        starts = [*_recent(old.read(), now), (now, name)]
        old.seek(0)
        old.truncate()
        old.writelines(f"{int(when)} {other}\n" for when, other in starts)
    return sum(other == name for _, other in starts)


def _recent(text: str, now: float) -> list[tuple[float, str]]:
    """Return the starts of the last hour in the file, none if it is damaged."""
    try:
        lines = (line.partition(" ") for line in text.splitlines())
        starts = [(float(when), name) for when, _, name in lines]
    except ValueError:
        return []
    return [(when, name) for when, name in starts if 0 <= now - when < _WINDOW_S]
