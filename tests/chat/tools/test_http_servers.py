"""Servers over HTTP that forget sessions, deny access, change their tools, or speak the old way."""

import json
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from swiftchat.chat.tools.connection import Connections, ServerError
from swiftchat.chat.tools.result import result_text
from swiftchat.chat.tools.servers import ServerSpec
from swiftchat.chat.tools.toolbox import Toolbox
from tests.support.worker_processes import wait_until

# What servers say of a session that they do not know; -32001 is the SDK's code of a time-out, too.
GONE: list[tuple[int, bytes]] = [
    (
        404,
        b'{"jsonrpc": "2.0", "id": 1, "error": {"code": -32001, "message": "Session not found"}}',
    ),
    (404, b"Not Found"),
    (
        400,
        b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32000, "message": "No valid session"}}',
    ),
]


def _tool(name: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    return {"name": name, "inputSchema": schema}


@dataclass
class OddServer:
    """A server with one tool, `echo`. `sessions` are those that it knows; `calls` it has made."""

    is_old: bool = False  # it speaks HTTP with SSE
    status: int = 0  # of every answer
    gone: tuple[int, bytes] = GONE[0]
    keeps: bool = True  # new sessions
    tools: list[Any] = field(default_factory=lambda: [_tool("echo")])
    drops: bool = False  # the connection, instead of an answer to a call
    calls: int = 0
    sessions: set[str] = field(default_factory=set)
    streams: dict[str, "queue.Queue[str | None]"] = field(default_factory=dict)

    def forget(self) -> None:
        """Forget all sessions, as after a restart."""
        self.sessions.clear()
        for stream in self.streams.values():
            stream.put(None)
        self.streams.clear()

    def answer(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Return the answer to a message, None to a notification."""
        result: dict[str, Any]
        match request["method"]:
            case "initialize":
                tools = {"tools": {"listChanged": True}}
                info = {"name": "odd", "version": "1"}
                result = {"protocolVersion": "2025-06-18", "capabilities": tools}
                result["serverInfo"] = info
            case "tools/list":
                result = {"tools": self.tools}
            case "tools/call":
                self.calls += 1
                text = request["params"]["arguments"]["text"]
                result = {"content": [{"type": "text", "text": text}]}
            case method:
                error = {"code": -32601, "message": f"no {method}"}
                return {"jsonrpc": "2.0", "id": request.get("id"), "error": error}
        return {"jsonrpc": "2.0", "id": request["id"], "result": result}


@contextmanager
def running(odd: OddServer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Write nothing."""

        def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            kind = "application/json" if body.startswith(b"{") else "text/plain"
            named = {"Content-Type": kind, "Content-Length": str(len(body)), **headers}
            for name, value in named.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            if odd.status or not odd.is_old:
                self.reply(odd.status or 405)
                return
            name = f"s{len(odd.sessions)}-{odd.calls}"
            odd.sessions.add(name)
            events = odd.streams[name] = queue.Queue()
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            events.put(f"event: endpoint\ndata: /messages?session_id={name}\n\n")
            while (event := events.get()) is not None:
                self.wfile.write(event.encode())
            self.close_connection = True

        def do_DELETE(self) -> None:
            self.reply(200)

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if odd.status:
                self.reply(odd.status)
            elif odd.is_old:
                self.old_post(request)
            else:
                self.post(request)

        def old_post(self, request: dict[str, Any]) -> None:
            name = self.path.rpartition("=")[2]
            if not self.path.startswith("/messages"):
                self.reply(405)
            elif name not in odd.sessions:
                self.reply(*odd.gone)
            else:
                self.reply(202, b"Accepted")
                if "id" in request:
                    answer = json.dumps(odd.answer(request))
                    odd.streams[name].put(f"event: message\ndata: {answer}\n\n")

        def post(self, request: dict[str, Any]) -> None:
            name = self.headers["Mcp-Session-Id"]
            if request["method"] == "initialize":
                name = f"s{odd.calls}-{len(odd.sessions)}"
                odd.sessions |= {name} if odd.keeps else set()
                self.reply(200, json.dumps(odd.answer(request)).encode(), Mcp_Session_Id=name)
            elif name is None:
                self.reply(404)
            elif name not in odd.sessions and request["method"] == "tools/call":
                self.reply(*odd.gone)
            elif "id" not in request:
                self.reply(202)
            elif odd.drops and request["method"] == "tools/call":
                odd.calls += 1
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
            else:
                self.reply(200, json.dumps(odd.answer(request)).encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/mcp"
    finally:
        odd.forget()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("gone", GONE)
@pytest.mark.parametrize("is_old", [False, True])
def test_a_session_that_is_gone_is_renewed(is_old: bool, gone: tuple[int, bytes]) -> None:
    odd = OddServer(is_old, gone=gone)
    with running(odd) as url, Connections() as connections:
        server = connections.open(ServerSpec("odd", url=url))
        server.wait_ready()
        assert result_text(server.call("echo", {"text": "a"})) == "a"
        odd.sessions.clear()
        assert result_text(server.call("echo", {"text": "b"})) == "b"
        odd.forget()
        if is_old:
            wait_until(lambda: server._has_ended)
        assert result_text(server.call("echo", {"text": "c"})) == "c"
        assert odd.calls == 3, "no call is made twice"


def test_a_session_that_cannot_be_renewed_is_no_time_out() -> None:
    odd = OddServer(keeps=False)
    with running(odd) as url, Connections() as connections:
        server = connections.open(ServerSpec("odd", url=url))
        server.wait_ready()
        with pytest.raises(ServerError, match="does not know the session: Session not found"):
            server.call("echo", {"text": "a"})
        odd.status = 500
        with pytest.raises(ServerError, match="refuses the call, with HTTP status 500"):
            server.call("echo", {"text": "a"})


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("is_sse", [False, True])
def test_denied_access_has_a_hint(status: int, is_sse: bool) -> None:
    odd = OddServer(status=status)
    with running(odd) as url, Connections() as connections:
        server = connections.open(ServerSpec("odd", url=url, is_sse=is_sse))
        with pytest.raises(
            ServerError, match=f"denies access, with HTTP status {status}"
        ) as caught:
            server.wait_ready()
        assert '"odd": {"url": "…", "headers": {"Authorization"' in caught.value.hint


def test_another_status_at_the_start_is_named() -> None:
    for status in (404, 405, 500):
        with running(OddServer(status=status)) as url, Connections() as connections:
            server = connections.open(ServerSpec("odd", url=url))
            with pytest.raises(ServerError, match=f"did not start: HTTP status {status}"):
                server.wait_ready()


def test_tools_are_read_again_when_the_server_says_that_they_change() -> None:
    odd = OddServer(is_old=True)
    warnings: list[str] = []
    with running(odd) as url, Toolbox([ServerSpec("odd", url=url)], ["echo"]) as toolbox:
        toolbox.start(lambda error: warnings.append(error.message))
        assert toolbox.refresh(print) == []
        odd.tools.append(_tool("new"))
        changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        for stream in odd.streams.values():
            stream.put(f"event: message\ndata: {json.dumps(changed)}\n\n")
        tool = toolbox.tools["echo"]
        assert tool.prepare({"text": "x"}).run() == "x", "the notification came before"
        assert toolbox.refresh(print) == ["odd"]
        assert [*toolbox.tools] == ["echo", "new"]
        assert toolbox.is_allowed(toolbox.tools["echo"])
        assert not toolbox.is_allowed(toolbox.tools["new"])
    assert not warnings


def test_a_call_that_may_have_been_made_is_not_repeated() -> None:
    odd = OddServer(drops=True)
    with running(odd) as url, Connections() as connections:
        server = connections.open(ServerSpec("odd", url=url))
        server.wait_ready()
        with pytest.raises(ServerError, match="the MCP server odd has ended"):
            server.call("echo", {"text": "a"})
    assert odd.calls == 1


def test_one_odd_tool_does_not_lose_the_others() -> None:
    schemas: list[Any] = [
        {},
        True,
        None,
        [],
        {"properties": None},
        {"type": "object", "properties": {"a": True, "b": 3}},
        {"type": ["object"], "properties": {"a": {}}, "required": "a"},
        {"type": "object", "required": ["a", 3]},
    ]
    odd = OddServer(tools=[_tool("echo")])
    for number, schema in enumerate(schemas):
        odd.tools.append({"name": f"odd{number}", "description": 3, "inputSchema": schema})
    odd.tools += [{"name": "none"}, {"name": 3}, "text", {"name": "noted", "annotations": 3}]
    warnings: list[str] = []
    with running(odd) as url, Toolbox([ServerSpec("odd", url=url)]) as toolbox:
        toolbox.start(lambda error: warnings.append(error.message))
        names = {"echo", "none", "noted", *(f"odd{i}" for i in range(len(schemas)))}
        assert set(toolbox.tools) == names and not warnings
        assert toolbox.tools["odd5"].schema["properties"] == {"a": {}, "b": {}}
        assert toolbox.tools["echo"].prepare({"text": "x"}).run() == "x"


def test_tools_that_are_too_many_are_told() -> None:
    odd = OddServer(tools=[_tool(f"t{i}") for i in range(300)])
    warnings: list[str] = []
    with running(odd) as url, Toolbox([ServerSpec("odd", url=url)]) as toolbox:
        toolbox.start(lambda error: warnings.append(error.message))
        assert len(toolbox.tools) == 256
    assert warnings == ["odd has 300 tools; the first 256 are used"]
