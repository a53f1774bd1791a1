"""Let `subprocess` and `pexpect` fork programs instead of starting them."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pexpect
import ptyprocess

from tests.support.forks.fork_exec import replace_fork_exec
from tests.support.forks.own import fork_in_terminal
from tests.support.forks.server import ForkServer

_SIZE = (24, 80)
_server = ForkServer()


def install() -> None:
    """Replace their functions in this process, that of the tests."""
    if sys.platform != "linux":
        return
    _server.environment = dict(os.environ)
    replace_fork_exec(_server)
    original = pexpect.spawn._spawnpty

    def spawn(self: pexpect.spawn, args: list[str], **settings: Any) -> ptyprocess.PtyProcess:
        environment = dict(settings["env"] or os.environ)
        plain = settings["echo"] and settings["preexec_fn"] is None
        if not plain or not _server.can_fork(args, environment):
            return original(self, args, **settings)
        folder, size = settings["cwd"] or str(Path.cwd()), settings.get("dimensions", _SIZE)
        started = fork_in_terminal(args, environment, folder, size, _server.fork)
        return ptyprocess.PtyProcess(*started)

    pexpect.spawn._spawnpty = spawn


@contextmanager
def real_starts() -> Iterator[None]:
    """Start every program within the context, as a user does."""
    _server.is_used = False
    try:
        yield
    finally:
        _server.is_used = True
