"""Connections to MCP servers. Everything asynchronous is in this file and in `transport.py`.

The SDK runs in an event loop in a thread; the methods here block. The SDK is imported when the
first server is needed.
"""

import contextlib
import logging
import os
import threading
from collections import deque
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from swiftchat.chat.tools.servers import ServerSpec
from swiftchat.chat.tools.transport import (
    bound_messages,
    http_transport,
    lenient,
    sse_transport,
    stdio_transport,
)
from swiftchat.errors import SwiftchatError, UsageError

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal
    from mcp import Client
    from mcp.client._transport import Transport
    from mcp_types import CallToolResult, Tool

START_S = 60.0  # a launcher such as npx may download the server first
CALL_S = 120.0
_CLOSE_S = 8.0  # longer than the SDK needs to kill a server
_NONSENSE_S = 5.0  # time to start for a server that writes something else than messages
_MAX_PAGES = 16  # of a list of tools
_NUM_STDERR_LINES = 20
_STDERR_LINE_BYTES = 500
_DENIED = (401, 403)
_GONE = 404  # what the protocol says of a session that the server does not know
_OLDER = (400, 404, 405)  # how servers of the older protocol answer to the first message


class ServerError(SwiftchatError):
    """A server that does not start, does not answer or has ended."""

    default_hint = "/tools lists the servers, /tools on starts those again that have ended"


def check_installed() -> None:
    """Raise `UsageError` if the SDK is missing."""
    try:
        import mcp  # noqa: F401 (checks that it is installed)
    except ImportError:
        raise UsageError(
            "tools need the package mcp", "pip install 'swiftchat[mcp]', or pip install mcp"
        ) from None


class Connections:
    """The event loop of the connections; a context manager that ends all servers."""

    def __init__(self) -> None:
        check_installed()
        from anyio.from_thread import start_blocking_portal

        # The SDK logs what a server sends wrong, and the last resort of logging is stderr.
        bound_messages()
        logger = logging.getLogger("mcp")
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
        self._opened: list[Connection] = []
        self._stack = contextlib.ExitStack()
        self._portal = self._stack.enter_context(start_blocking_portal("asyncio", name="mcp"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def open(self, spec: ServerSpec) -> "Connection":
        """Start a server; it gets ready in the background."""
        connection = Connection(self._portal, spec)
        self._opened.append(connection)
        return connection

    def close(self) -> None:
        """End the servers, all at the same time, and the event loop."""
        for connection in self._opened:
            connection.begin_close()
        for connection in self._opened:
            connection.wait_closed()
        self._opened.clear()
        self._stack.close()


class _SessionGone(ServerError):
    """The server does not know the session; it has not made the call."""


class Connection:
    """One server. `tools` are there after `wait_ready`."""

    def __init__(self, portal: "BlockingPortal", spec: ServerSpec) -> None:
        self.spec = spec
        self.tools: list[Tool] = []
        self._client: Client | None = None
        self._nonsense = False  # the server has written something else than messages
        self._has_changed = False  # its tools, since they were read
        self._stderr: deque[str] = deque(maxlen=_NUM_STDERR_LINES)
        self._portal = portal
        self._begin()

    def _begin(self) -> None:
        """Connect in the background."""
        import anyio

        self._status = 0  # of HTTP, if the server has refused a message
        self._has_ended = False  # the server has ended the connection
        self._stop = self._portal.call(anyio.Event)
        self._ready: Future[list[Tool]] = Future()
        self._task = self._portal.start_task_soon(self._run)

    @property
    def is_alive(self) -> bool:
        return self._client is not None

    def wait_ready(self, timeout_s: float = START_S) -> None:
        """Wait for the list of tools. Raises `ServerError`; the server is then ended."""
        try:
            self.tools = self._result(timeout_s)
        except (FutureTimeoutError, CancelledError):
            self.begin_close()
            late = f"did not answer within {timeout_s:.0f} s"
            reason = "writes no MCP messages, but other text, to stdout" if self._nonsense else late
            raise self._error(reason) from None
        except Exception as error:
            if self._status:
                raise self._refusal(_first(error)) from error
            raise self._error(f"did not start: {_first(error)}") from error

    def _result(self, timeout_s: float) -> "list[Tool]":
        """Wait in two steps, because a program that is no server should not be waited for long."""
        first_s = min(_NONSENSE_S, timeout_s)
        try:
            return self._ready.result(first_s)
        except FutureTimeoutError:
            if self._nonsense:
                raise
        return self._ready.result(timeout_s - first_s)

    def call(
        self, name: str, arguments: dict[str, Any], timeout_s: float = CALL_S
    ) -> "CallToolResult":
        """Call a tool. Raises `ServerError`; `KeyboardInterrupt` cancels the call.

        If the server at an address has forgotten the session, the call is made in a new one.
        """
        if self._has_ended and self.spec.url:
            self._renew()
        try:
            return self._call(name, arguments, timeout_s)
        except _SessionGone:
            self._renew()
        return self._call(name, arguments, timeout_s)

    def _renew(self) -> None:
        """Begin a new session. Raises `ServerError`."""
        self.begin_close()
        self.wait_closed()
        self._begin()
        try:
            self.wait_ready()
        except ServerError as error:
            gone = f"the session of the MCP server {self.spec.name} is gone"
            raise ServerError(f"{gone}, and a new one fails: {error.message}", error.hint) from None
        self._has_changed = True

    def _call(self, name: str, arguments: dict[str, Any], timeout_s: float) -> "CallToolResult":
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED

        client = self._client
        if client is None:
            raise self._error("has ended")
        self._status, self._nonsense = 0, False
        future: Future[CallToolResult] = self._portal.start_task_soon(
            _call_within, client, name, arguments, timeout_s
        )
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise
        except TimeoutError as error:
            late = f"did not answer within {timeout_s:.0f} s"
            raise self._error(
                "answered with text that is no message" if self._nonsense else late
            ) from error
        except MCPError as error:
            if self._status:
                raise self._refusal(_first(error)) from error
            if error.code == CONNECTION_CLOSED:
                self.begin_close()
                raise self._error("has ended") from error
            raise self._error(f"reports an error: {_first(error)}") from error
        except Exception as error:
            raise self._error(f"sent an invalid answer: {_first(error)}") from error

    def refresh(self) -> bool:
        """Read the tools again if the server has said that they change; return whether they did.

        Raises `ServerError`.
        """
        client, has_changed = self._client, self._has_changed
        if client is None or not has_changed:
            return False
        self._has_changed = False
        before = self.tools
        try:
            self.tools = self._portal.start_task_soon(_list_tools, client).result(START_S)
        except Exception as error:
            raise self._error(f"does not list its tools: {_first(error)}") from error
        return self.tools != before

    def begin_close(self) -> None:
        """Ask the server to end, without waiting for it."""
        if self._client is None:
            self._task.cancel()
        self._client = None
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._portal.start_task_soon(self._stop.set)

    def wait_closed(self) -> None:
        with contextlib.suppress(Exception, CancelledError):
            self._task.result(_CLOSE_S)
        self._task.cancel()

    def _error(self, reason: str, hint: str = "") -> ServerError:
        parts = [f"the MCP server {self.spec.name} {reason}"]
        if self._stderr:
            parts.append(f"its last line on stderr is {self._stderr[-1]!r}")
        return ServerError("; ".join(parts), hint)

    def _refusal(self, message: str) -> ServerError:
        """Return the error for a message that the server has refused with a status of HTTP."""
        status, name = self._status, self.spec.name
        if status in _DENIED:
            return self._error(
                f"denies access, with HTTP status {status}",
                f'give it a token in a JSON file: {{"mcpServers": {{"{name}": {{"url": "…", '
                '"headers": {"Authorization": "Bearer …"}}}}',
            )
        if self._ready.done() and self._ready.exception() is None:
            is_gone = status == _GONE or "session" in message.lower()
            # The older protocol refuses messages for no other reason, and the SDK drops it.
            if is_gone or (self._has_ended and status in _OLDER):
                return _SessionGone(f"the MCP server {name} does not know the session: {message}")
            return self._error(f"refuses the call, with HTTP status {status}: {message}")
        hint = "check the path of the address" if status in _OLDER else ""
        return self._error(f"did not start: HTTP status {status}, {message}", hint)

    async def _run(self) -> None:
        """Connect, and stay connected until `begin_close`."""
        stderr_source, stderr_sink = os.pipe()
        threading.Thread(
            target=self._read_stderr, args=(stderr_source,), name="mcp-stderr", daemon=True
        ).start()
        sink = os.fdopen(stderr_sink, "w")
        try:
            if self.spec.url:
                await self._serve_address()
            else:
                await self._serve(stdio_transport(self.spec, sink))
            if not self._ready.done():
                self._ready.set_exception(ConnectionError("it refuses messages"))
        except Exception as error:  # noqa: BLE001 (given to `wait_ready`)
            if not self._ready.done():
                self._ready.set_exception(error)
        finally:
            self._client = None
            sink.close()
            if not self._ready.done():
                self._ready.cancel()

    async def _serve_address(self) -> None:
        """Stay connected to an address, by the protocol that the server speaks."""
        if not self.spec.is_sse:
            try:
                await self._serve(http_transport(self.spec, self._note_status))
                return
            except Exception as error:
                first, status = error, self._status
                if self._ready.done() or status not in _OLDER:
                    raise
        try:
            await self._serve(sse_transport(self.spec, self._note_end_by_status))
        except Exception:
            if self._ready.done() or self.spec.is_sse:
                raise
            self._status = status
            raise first from None

    async def _serve(self, transport: "Transport") -> None:
        """Stay connected until `begin_close`, or until a message is refused without an answer."""
        import anyio
        from mcp import Client
        from mcp_types import Implementation

        info = Implementation(name="swiftchat", version="0")
        streams = lenient(transport, self._note_end)
        with anyio.CancelScope() as self._scope:
            async with Client(
                streams, client_info=info, message_handler=self._note, cache=None
            ) as client:
                tools = await _list_tools(client)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_follow_changes, client)
                    self._client = client
                    self._ready.set_result(tools)
                    await self._stop.wait()
                    tasks.cancel_scope.cancel()

    def _note_status(self, status: int) -> None:
        self._status = status

    def _note_end_by_status(self, status: int) -> None:
        """End the connection: the SDK waits for an answer to the message, which cannot come."""
        self._status = status
        self._has_ended = True
        self._scope.cancel()

    def _note_end(self) -> None:
        self._has_ended = True

    async def _note(self, message: object) -> None:
        from mcp_types import ToolListChangedNotification

        self._nonsense = self._nonsense or isinstance(message, Exception)
        self._has_changed = self._has_changed or isinstance(message, ToolListChangedNotification)

    def _read_stderr(self, descriptor: int) -> None:
        """Keep the last lines of what the server writes to stderr; the terminal never sees it."""
        with open(descriptor, "rb", buffering=0) as stream:
            rest = b""
            while data := stream.read(1 << 14):
                *lines, rest = (rest + data).split(b"\n")
                rest = rest[-_STDERR_LINE_BYTES:]
                texts = (line[:_STDERR_LINE_BYTES].decode("utf-8", "replace") for line in lines)
                self._stderr.extend(text.strip() for text in texts if text.strip())


async def _call_within(
    client: "Client", name: str, arguments: dict[str, Any], timeout_s: float
) -> "CallToolResult":
    """Call a tool; raises `TimeoutError`. The SDK's own has a code that servers use as well."""
    import anyio

    with anyio.fail_after(timeout_s):
        return await client.call_tool(name, arguments)


async def _follow_changes(client: "Client") -> None:
    """Have the server tell changes of its tools; those before 2026 do it without being asked."""
    import anyio

    tools = client.server_capabilities.tools
    if tools is not None and tools.list_changed:
        with contextlib.suppress(Exception):  # it may refuse, and then tells none
            async with client.listen(tools_list_changed=True):
                await anyio.sleep_forever()


async def _list_tools(client: "Client") -> "list[Tool]":
    """Return all pages of the list of tools."""
    if client.server_capabilities.tools is None:
        return []
    tools: list[Tool] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return tools


def _first(error: BaseException) -> str:
    """Return the text of an error, of the first one in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = " ".join(str(error).split())
    return text[:300] or type(error).__name__
