"""The end of an engine that no terminal uses."""

import time

from swiftchat.engine.server.listener import Listener
from swiftchat.engine.server.serve import EngineServer

_CHECK_S = 1.0


def wait_until_unused(server: EngineServer, listener: Listener) -> None:
    """Wait until the engine was not used for its time; then it does not listen any more.

    The terminal whose end is that of the engine does not count as connected; its requests count as
    use.
    """
    while (left_s := server.ends_in_s) != 0 or not listener.close_if_unused():
        time.sleep(min(left_s or _CHECK_S, _CHECK_S))
