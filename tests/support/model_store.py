"""Tiny models, made once for all tests of a session and all processes of `-n`."""

import hashlib
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

# The folder that the processes of a session share; `conftest.py` sets it.
session_folder: Path | None = None


def stored(name: str, changes: Mapping[str, Any], make: Callable[[Path], object]) -> Path:
    """Return the folder that `make` filled, in this or in another process of the session.

    `name` and `changes` must determine what `make` writes. Two processes may make the same folder
    at the same time: it appears under its name when it is complete, and the first one stays. What
    is in it must not be changed.
    """
    digest = hashlib.sha256(repr(sorted(changes.items())).encode()).hexdigest()[:16]
    parent = session_folder or Path(_own_folder().name)
    folder = parent / f"{name}-{digest}"
    if not folder.exists():
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=parent, prefix="making-") as unfinished:
            made = Path(unfinished) / name
            made.mkdir()
            make(made)
            try:
                made.rename(folder)
            except OSError:
                if not folder.exists():
                    raise
    return folder


@cache
def _own_folder() -> tempfile.TemporaryDirectory[str]:
    """Make a folder that is removed when this process ends, for programs that are no tests."""
    return tempfile.TemporaryDirectory(prefix="tiny-models-")
