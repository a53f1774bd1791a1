"""The switch of mutants in one tree, in every process of a virtual environment.

`sample apply` copies this file to site-packages, with a `.pth` file that imports it when Python
starts. In the environment's folder `mutants`, the file `active` has the numbers of the mutants that
are on. If there is a file `reached`, all are off, and each process appends the numbers of the
mutants that it reaches and the tests that it runs for.
"""

import builtins
import os
import sys
from pathlib import Path

_FOLDER = Path(sys.prefix) / "mutants"
_REACHED = _FOLDER / "reached"


def _active() -> frozenset[int]:
    try:
        return frozenset(map(int, (_FOLDER / "active").read_text().split()))
    except OSError:
        return frozenset()


_ACTIVE = _active()
_noted: set[tuple[int, str]] = set()


def is_active(number: int) -> bool:
    return number in _ACTIVE


def note(number: int) -> bool:
    """Note once that the current test reaches a mutant, which is off."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    if (number, test) not in _noted:
        _noted.add((number, test))
        try:
            descriptor = os.open(_REACHED, os.O_WRONLY | os.O_APPEND)
            os.write(descriptor, f"{number}\t{test}\n".encode())
            os.close(descriptor)
        except OSError:  # without rights, in a sandbox
            return False
    return False


vars(builtins)["__mutant__"] = note if _REACHED.exists() else is_active
