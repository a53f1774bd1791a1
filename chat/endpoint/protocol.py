"""HTTP connections with limits: a client that sends nothing keeps no other client away."""

import asyncio
import resource
import time
from typing import TYPE_CHECKING, Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from swiftchat.chat.endpoint.errors import ApiError

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

HEADERS_S = 10.0  # from the connection, or the end of an answer, to the end of the headers
MAX_CONNECTIONS = 256
BACKLOG = 64  # connections that are accepted at once
_OTHER_FILES = 96  # that the server may have open


def _max_connections() -> int:
    """Return how many connections there may be: some systems allow a process 256 open files."""
    num_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_limited = num_files != resource.RLIM_INFINITY
    room = max(num_files - _OTHER_FILES - BACKLOG, 16)
    return min(MAX_CONNECTIONS, room) if is_limited else MAX_CONNECTIONS


class BoundedProtocol(H11Protocol):
    """Closes a connection whose next request is not there in time.

    If there are too many connections, a new one replaces the one that waits longest for a request:
    a client shows its token in the headers only. If none waits, the new one gets an error. Errors
    have OpenAI's format.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._deadline: asyncio.TimerHandle | None = None
        self._waiting_since = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._watch()
        if len(self.connections) >= (most := _max_connections()):
            waiting = [
                other
                for other in self.connections
                if isinstance(other, BoundedProtocol) and other._is_waiting and other is not self
            ]
            if waiting:
                min(waiting, key=lambda other: other._waiting_since)._abort()
            else:
                busy = ApiError(503, f"{most} connections are in use", "busy")
                self.app = cast("ASGI3Application", busy.response())

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

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, unless an answer is being sent, and close the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = ApiError(400, msg.rstrip("."), "invalid_http").response()
            headers = [*response.raw_headers, (b"connection", b"close")]
            body = h11.Data(data=bytes(response.body))
            head = h11.Response(status_code=400, headers=headers)
            for event in (head, body, h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

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
