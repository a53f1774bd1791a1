"""The ways to an MCP server: a program's pipes, streamable HTTP, and the older HTTP with SSE."""

import contextlib
import shutil
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from swiftchat.chat.tools.servers import ServerSpec
from swiftchat.errors.interpreter import guarded

if TYPE_CHECKING:
    import httpx2
    from mcp.client._transport import Transport, TransportStreams

_CONNECT_S, _READ_S = 30.0, 150.0
_MAX_MESSAGE_CHARACTERS = 1 << 24

OnStatus = Callable[[int], None]


def stdio_transport(spec: ServerSpec, stderr: Any) -> "Transport":
    """Return the transport to a program that is started; `stderr` is a file that receives its.

    Raises `FileNotFoundError` if there is no such program.
    """
    from mcp import StdioServerParameters, stdio_client
    from mcp.client.stdio import get_default_environment

    path = {**get_default_environment(), **spec.env}.get("PATH")
    program = shutil.which(spec.command[0], path=path)
    if program is None:
        raise FileNotFoundError(f"there is no program {spec.command[0]}")
    command = guarded([program, *spec.command[1:]])
    parameters = StdioServerParameters(
        command=command[0],
        args=command[1:],
        env=spec.env,
        cwd=spec.cwd,
        encoding_error_handler="replace",
    )
    return stdio_client(parameters, stderr)


def http_transport(spec: ServerSpec, on_status: OnStatus) -> "Transport":
    """Return the transport to an address; `on_status` gets the status of each refused message.

    The SDK does not tell it: all of them become the same error, or none.
    """

    @contextlib.asynccontextmanager
    async def streams() -> "AsyncIterator[TransportStreams]":
        from mcp.client.streamable_http import streamable_http_client

        async with (
            _http_client(spec, on_status) as client,
            streamable_http_client(spec.url, http_client=client) as found,
        ):
            yield found

    return streams()


def sse_transport(spec: ServerSpec, on_status: OnStatus) -> "Transport":
    """As `http_transport`, for the older protocol: messages come as events of one GET request."""
    from mcp.client.sse import sse_client

    def client(*_settings: object, **_more: object) -> "httpx2.AsyncClient":
        # A server may be silent for hours.
        return _http_client(spec, on_status, ("GET", "POST"), read_s=None)

    return sse_client(spec.url, httpx_client_factory=client)


def _http_client(
    spec: ServerSpec,
    on_status: OnStatus,
    methods: tuple[str, ...] = ("POST",),
    read_s: float | None = _READ_S,
) -> "httpx2.AsyncClient":
    import httpx2

    async def note(response: httpx2.Response) -> None:
        # Many servers refuse the GET request of streamable HTTP, which is for their own messages.
        if response.is_error and response.request.method in methods:
            on_status(response.status_code)

    return httpx2.AsyncClient(
        headers=spec.headers,
        timeout=httpx2.Timeout(_CONNECT_S, read=read_s),
        event_hooks={"response": [note]},
    )


@contextlib.asynccontextmanager
async def lenient(
    transport: "Transport", on_end: Callable[[], None]
) -> "AsyncIterator[TransportStreams]":
    """Yield the streams of a transport, with lists of tools that the SDK accepts.

    It would drop a whole list because of one tool. `on_end` is called when the server ends.
    """
    async with transport as (source, sink):
        yield _LenientStream(source, on_end), sink


class _LenientStream:
    """A stream of messages from a server."""

    def __init__(self, source: Any, on_end: Callable[[], None]) -> None:
        self._source = source
        self._on_end = on_end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    async def __aenter__(self) -> "_LenientStream":
        await self._source.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._source.__aexit__(*exc_info)

    def __aiter__(self) -> "_LenientStream":
        return self

    async def __anext__(self) -> Any:
        try:
            item = await self._source.__anext__()
        except StopAsyncIteration:
            self._on_end()
            raise
        result = getattr(getattr(item, "message", None), "result", None)
        if isinstance(result, dict) and isinstance(tools := result.get("tools"), list):
            result["tools"] = [_tool(tool) for tool in tools if _is_named(tool)]
        return item


def _is_named(tool: object) -> bool:
    return isinstance(tool, dict) and isinstance(tool.get("name"), str)


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Return what is used of a tool, in the types of the protocol."""
    description, schema = tool.get("description"), tool.get("inputSchema")
    return {
        "name": tool["name"],
        "description": description if isinstance(description, str) else "",
        "inputSchema": _schema(schema if isinstance(schema, dict) else {}),
    }


def _schema(schema: dict[str, Any]) -> dict[str, Any]:
    properties, required = schema.get("properties"), schema.get("required")
    named = properties if isinstance(properties, dict) else {}
    return {
        **schema,
        "type": "object",
        "properties": {n: part if isinstance(part, dict) else {} for n, part in named.items()},
        "required": [name for name in required if isinstance(name, str)]
        if isinstance(required, list)
        else [],
    }


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
