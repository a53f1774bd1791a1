"""Compiled modules, kept in a folder of the checkout where Python is told to write none.

Hundreds of test modules and the program would otherwise be compiled by every process of `-n` and by
every program that a test starts: half of the time that the collection of the tests takes.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".test-bytecode"


def keep() -> None:
    """Let this process, and those that it starts, keep compiled modules in `FOLDER`.

    Nothing changes where Python writes bytecode anyway.
    """
    if not sys.dont_write_bytecode:
        return
    # Modules that tests of the past have written.
    shutil.rmtree(FOLDER / Path(tempfile.gettempdir()).relative_to("/"), ignore_errors=True)
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(FOLDER)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
