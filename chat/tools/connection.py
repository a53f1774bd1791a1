"""Connections to MCP servers. Everything asynchronous is in this file.

The SDK runs in an event loop in a thread; the methods here block. The SDK is imported when the
first server is needed.
"""

import contextlib
import logging
import os
import shutil
import sys
import threading
from collections import deque
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from swiftchat.chat.tools.servers import ServerSpec
from swiftchat.errors import SwiftchatError, UsageError
from swiftchat.errors.interpreter import python_file

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
_MAX_MESSAGE_CHARACTERS = 1 << 24
_STDERR_LINE_BYTES = 500


class ServerError(SwiftchatError):
    """A server that does not start, does not answer or has ended."""

    exit_code = 4
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


def bound_messages() -> None:
    """Have the SDK drop what is longer than a message may be; it keeps a line of any length.

    The beginning becomes an invalid message, as other text does.
    """
    from anyio.streams.text import TextReceiveStream
    from mcp.client import stdio

    class BoundedText(TextReceiveStream):
        num_characters = 0  # since the last line end

        async def receive(self) -> str:
            text = await super().receive()
            _, line_end, rest = text.partition("\n")
            was_dropped = self.num_characters > _MAX_MESSAGE_CHARACTERS
            last = text.rpartition("\n")[2]
            self.num_characters = len(last) + (0 if line_end else self.num_characters)
            if was_dropped:
                return rest
            return text if self.num_characters <= _MAX_MESSAGE_CHARACTERS else "\n"

    stdio.TextReceiveStream = BoundedText  # type: ignore[attr-defined]


class Connection:
    """One server. `tools` are there after `wait_ready`."""

    def __init__(self, portal: "BlockingPortal", spec: ServerSpec) -> None:
        import anyio

        self.spec = spec
        self.tools: list[Tool] = []
        self._client: Client | None = None
        self._nonsense = False  # the server has written something else than messages
        self._stderr: deque[str] = deque(maxlen=_NUM_STDERR_LINES)
        self._portal = portal
        self._stop = portal.call(anyio.Event)
        self._ready: Future[list[Tool]] = Future()
        self._task = portal.start_task_soon(self._run)

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
        """Call a tool. Raises `ServerError`; `KeyboardInterrupt` cancels the call."""
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        client = self._client
        if client is None:
            raise self._error("has ended")
        future: Future[CallToolResult] = self._portal.start_task_soon(
            client.call_tool, name, arguments, timeout_s
        )
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise
        except MCPError as error:
            if error.code == REQUEST_TIMEOUT:
                raise self._error(f"did not answer within {timeout_s:.0f} s") from error
            if error.code == CONNECTION_CLOSED:
                self.begin_close()
                raise self._error("has ended") from error
            raise self._error(f"reports an error: {error.message}") from error
        except Exception as error:
            raise self._error(f"sent an invalid answer: {_first(error)}") from error

    def begin_close(self) -> None:
        """Ask the server to end, without waiting for it."""
        if self._client is None:
            self._task.cancel()
        self._client = None
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._portal.start_task_soon(self._stop.set)

    def wait_closed(self) -> None:
        with contextlib.suppress(Exception):
            self._task.result(_CLOSE_S)
        self._task.cancel()

    def _error(self, reason: str) -> ServerError:
        parts = [f"the MCP server {self.spec.name} {reason}"]
        if self._stderr:
            parts.append(f"its last line on stderr is {self._stderr[-1]!r}")
        return ServerError("; ".join(parts))

    async def _run(self) -> None:
        """Connect, and stay connected until `begin_close`."""
        from mcp import Client
        from mcp_types import Implementation

        info = Implementation(name="swiftchat", version="0")
        stderr_source, stderr_sink = os.pipe()
        threading.Thread(
            target=self._read_stderr, args=(stderr_source,), name="mcp-stderr", daemon=True
        ).start()
        sink = os.fdopen(stderr_sink, "w")
        try:
            transport = self._transport(sink)
            async with Client(
                transport, client_info=info, message_handler=self._note, cache=None
            ) as client:
                sink.close()
                tools = await _list_tools(client)
                self._client = client
                self._ready.set_result(tools)
                await self._stop.wait()
        except Exception as error:  # noqa: BLE001 (given to `wait_ready`)
            if not self._ready.done():
                self._ready.set_exception(error)
        finally:
            self._client = None
            sink.close()
            if not self._ready.done():
                self._ready.cancel()

    def _transport(self, stderr: Any) -> "Transport":
        from mcp import StdioServerParameters, stdio_client
        from mcp.client.stdio import get_default_environment

        spec = self.spec
        if spec.url:
            return _http_transport(spec)
        path = {**get_default_environment(), **spec.env}.get("PATH")
        program = shutil.which(spec.command[0], path=path)
        if program is None:
            raise FileNotFoundError(f"there is no program {spec.command[0]}")
        command = [program, *spec.command[1:]]
        if sys.platform == "linux":
            guard = str(Path(__file__).with_name("guard.py"))
            command = python_file(guard, str(os.getpid()), *command)
        parameters = StdioServerParameters(
            command=command[0],
            args=command[1:],
            env=spec.env,
            cwd=spec.cwd,
            encoding_error_handler="replace",
        )
        return stdio_client(parameters, stderr)

    async def _note(self, message: object) -> None:
        self._nonsense = self._nonsense or isinstance(message, Exception)

    def _read_stderr(self, descriptor: int) -> None:
        """Keep the last lines of what the server writes to stderr; the terminal never sees it."""
        with open(descriptor, "rb", buffering=0) as stream:
            rest = b""
            while data := stream.read(1 << 14):
                *lines, rest = (rest + data).split(b"\n")
                rest = rest[-_STDERR_LINE_BYTES:]
                texts = (line[:_STDERR_LINE_BYTES].decode("utf-8", "replace") for line in lines)
                self._stderr.extend(text.strip() for text in texts if text.strip())


def _http_transport(spec: ServerSpec) -> "Transport":
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    if not spec.headers:
        return streamable_http_client(spec.url)
    timeout = httpx2.Timeout(30.0, read=CALL_S + 30)
    client = httpx2.AsyncClient(headers=spec.headers, timeout=timeout)
    return streamable_http_client(spec.url, http_client=client)


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
