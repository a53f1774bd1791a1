"""Hints that people see once, when they are of use, and never again."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

_HINTS = {
    "start": "talks are kept: swiftchat -c goes on with the last, --no-save keeps none",
    "stopped": "/continue goes on with a stopped answer, /regen gives another",
    "code": "/copy code copies the code",
}


class Hints:
    """Tells each hint once in the life of the file that remembers them; without a file, none."""

    def __init__(self, file: Path | None, tell: Callable[[str], None]) -> None:
        self._file = file
        self._tell = tell
        self._shown: set[str] | None = None

    def show(self, name: str) -> None:
        """Tell the hint of that name, unless it was told before or that cannot be remembered."""
        if self._file is None or name in self._told(self._file):
            return
        self._told(self._file).add(name)
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self._file, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(f"{name}\n")
        except OSError:
            return  # better never than every time
        self._tell(f"hint: {_HINTS[name]}")

    def _told(self, file: Path) -> set[str]:
        if self._shown is None:
            self._shown = set()
            with contextlib.suppress(OSError, UnicodeDecodeError):  # none were told yet
                self._shown |= set(file.read_text().split())
        return self._shown


def hints_file() -> Path:
    import platformdirs

    return platformdirs.user_state_path("swiftchat") / "hints"
