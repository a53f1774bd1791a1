"""swiftchat as a process: with the fake engine and scripted answers, and its error messages."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support import fake_engine
from tests.support.forks.start import MAIN


class Program:
    """Command lines that run swiftchat with the fake engine and scripted answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def command(self, *answers: object, options: tuple[str, ...] = ()) -> list[str]:
        script = json.dumps(answers)
        return [sys.executable, fake_engine.__file__, str(self.folder), script, *options]

    def run(
        self,
        *options: str,
        answers: tuple[object, ...] = ("An answer.",),
        stdin: bytes = b"",
        **env: str,
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            self.command(*answers, options=options),
            input=stdin,
            capture_output=True,
            env={**os.environ, **env},
        )


def assert_error(
    done: subprocess.CompletedProcess[bytes], code: int, *parts: str
) -> tuple[str, str]:
    """Check exit code and stderr of a failed program; return the error line and the hint line.

    stderr ends with one `error:` line, which contains `parts`, and one `hint:` line; other lines
    are notes. stdout has no text.
    """
    text = done.stderr.decode()
    assert (done.returncode, done.stdout.strip()) == (code, b""), text
    assert "Traceback" not in text
    *notes, error, hint = text.splitlines()
    assert error.startswith("error: ") and hint.startswith("hint: "), text
    assert not any(line.startswith(("error: ", "hint: ")) for line in notes), text
    for part in parts:
        assert part in error, text
    return error, hint


def patched(code: str, *args: object) -> list[str]:
    """Return a command line of swiftchat that runs this code first, to patch its modules."""
    program = f"{code}\n{MAIN}"
    return [sys.executable, "-c", program, *map(str, args)]
