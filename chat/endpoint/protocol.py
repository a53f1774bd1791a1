"""HTTP connections with limits: a client that sends nothing keeps no other client away."""

import asyncio
import time
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADERS_S = 10.0  # from the connection, or the end of an answer, to the end of the headers
MAX_CONNECTIONS = 256


class BoundedProtocol(H11Protocol):
    """Closes a connection whose next request is not there in time.

    If there are too many connections, a new one replaces the one that waits longest for a request:
    a client shows its token in the headers only.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._deadline: asyncio.TimerHandle | None = None
        self._waiting_since = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._watch()
        if len(self.connections) >= MAX_CONNECTIONS:
            waiting = [
                other
                for other in self.connections
                if isinstance(other, BoundedProtocol) and other._is_waiting and other is not self
            ]
            if waiting:
                min(waiting, key=lambda other: other._waiting_since)._abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._deadline is not None:
            self._deadline.cancel()

    @property
    def _is_waiting(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _watch(self) -> None:
        """Start the time for the next request, unless it runs; stop it during an answer."""
        if self._deadline is not None and not self._is_waiting:
            self._deadline.cancel()
            self._deadline = None
        elif self._deadline is None and self._is_waiting:
            self._waiting_since = time.monotonic()
            self._deadline = self.loop.call_later(HEADERS_S, self._abort)

    def _abort(self) -> None:
        self.connections.discard(self)
        self.transport.abort()
