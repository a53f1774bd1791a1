"""The end of an engine that no terminal uses."""

import time

from swiftchat.engine.server.listener import Listener
from swiftchat.engine.server.serve import EngineServer

_MAX_WAIT_S = 1.0


def wait_until_unused(seconds: float, server: EngineServer, listener: Listener) -> None:
    """Wait until no terminal is connected and the engine is idle for a time; stop listening.

    The terminal that started the engine does not count as connected; its requests count as use.
    """
    unused_since = time.monotonic()
    while True:
        if server.num_guests:
            unused_since = time.monotonic()
        left = seconds - min(server.idle_s, time.monotonic() - unused_since)
        if left <= 0 and listener.close_if_unused():
            return
        time.sleep(min(max(left, 0.0), _MAX_WAIT_S))
