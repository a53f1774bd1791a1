"""Hints that are shown once per user."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from swiftchat.weights.files.private import create_private_folder, open_private

_HINTS = {
    "start": "chats are saved: swiftchat -c continues the last one, --no-save saves nothing",
    "stopped": "/continue extends a stopped answer, /regen answers again",
    "length": "/continue extends an answer that max_tokens has ended",
    "code": "/copy code copies the code",
    "path": "a path is sent as text; /read PATH attaches the file",
    "undone": "what /undo takes back stays: /branches lists it, /switch N returns to it",
}


class Hints:
    """Shows each hint once; `file` records those that were shown. Without a file, shows none."""

    def __init__(self, file: Path | None, show: Callable[[str], None]) -> None:
        self._file = file
        self._show = show
        self._shown: set[str] | None = None

    def show(self, name: str) -> None:
        """Show a hint, unless it was shown before or cannot be recorded as shown."""
        if self._file is None or name in self._already_shown(self._file):
            return
        self._already_shown(self._file).add(name)
        try:
            create_private_folder(self._file.parent)
            with os.fdopen(open_private(self._file, os.O_APPEND | os.O_WRONLY), "w") as file:
                file.write(f"{name}\n")
        except OSError:
            return  # an unrecorded hint would be shown every time
        self._show(f"hint: {_HINTS[name]}")

    def _already_shown(self, file: Path) -> set[str]:
        if self._shown is None:
            self._shown = set()
            with contextlib.suppress(OSError, UnicodeDecodeError):
                self._shown |= set(file.read_text().split())
        return self._shown


def hints_file() -> Path:
    """Return the file that records the hints shown to the user."""
    import platformdirs

    return platformdirs.user_state_path("swiftchat") / "hints"
