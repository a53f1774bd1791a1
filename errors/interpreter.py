"""How the program starts Python for its child processes.

It is here because every package may import this one, and four of them start children.
"""

import sys


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
