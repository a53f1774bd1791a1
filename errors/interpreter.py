"""How the program starts Python for its child processes.

It is here because every package may import this one, and four of them start children.
"""

import os
import sys

_GUARD = os.path.join(os.path.dirname(__file__), "guard.py")  # noqa: PTH118, PTH120 (as below)


def python_module(module: str, *arguments: str) -> list[str]:
    """Return the command that runs an installed module in a child process.

    Without -P Python would import from the working folder first: a `torch.py` in a folder that the
    user has downloaded would run as the user. The environment stays, with a PYTHONPATH.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def python_file(path: str, *arguments: str) -> list[str]:
    """Return the command that runs a file that imports only Python's own modules.

    Neither the working folder nor the environment changes what it imports, and it starts without
    `site`, which takes most of the time of a start.
    """
    return [sys.executable, "-I", "-S", path, *arguments]


def python_code(code: str) -> list[str]:
    """Return the command that runs code with the installed packages.

    It imports nothing from the working folder, and neither the environment nor the user's folder of
    packages changes what it imports.
    """
    return [sys.executable, "-I", "-c", code]


def guarded(command: list[str]) -> list[str]:
    """Return a command that runs the same program, and on Linux ends it when this process dies."""
    if sys.platform != "linux":
        return command
    return python_file(_GUARD, str(os.getpid()), *command)


def child_folder() -> str | None:
    """Return the folder for a child process: None, the working folder, or / if that was deleted.

    Libraries of the engine cannot be loaded without a working folder.
    """
    return None if has_working_folder() else "/"


def has_working_folder() -> bool:
    """Return whether the working folder exists and relative paths have a meaning."""
    try:
        os.getcwd()  # noqa: PTH109 (pathlib would need 5 ms to be imported)
    except OSError:
        return False
    return True
