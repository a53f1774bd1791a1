"""Connections to servers: over HTTP, time limits, and the end of all processes."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import psutil
import pytest

from swiftchat.chat.tools import transport
from swiftchat.chat.tools.connection import Connections, ServerError
from swiftchat.chat.tools.result import result_text
from swiftchat.chat.tools.servers import ServerSpec
from swiftchat.chat.tools.toolbox import Toolbox
from swiftchat.chat.tools.transport import bound_messages
from swiftchat.errors import UsageError
from tests.support import mcp_server
from tests.support.worker_processes import command_line

SCRIPT = str(Path(mcp_server.__file__))
COMMAND = (sys.executable, SCRIPT)
SDK_COMMAND = (sys.executable, str(Path(SCRIPT).with_name("mcp_sdk_server.py")))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def http_url() -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen([*SDK_COMMAND, str(port)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    yield f"http://127.0.0.1:{port}/mcp"
    process.kill()
    process.wait()


@pytest.mark.parametrize("headers", [{}, {"X-Key": "v"}])
def test_a_server_at_an_address(http_url: str, headers: dict[str, str]) -> None:
    with Connections() as connections:
        server = connections.open(ServerSpec("http", url=http_url, headers=headers))
        server.wait_ready()
        assert "add" in [tool.name for tool in server.tools]
        assert result_text(server.call("add", {"a": 2, "b": 3})) == "5"


def test_a_server_of_the_sdk() -> None:
    with Connections() as connections:
        server = connections.open(ServerSpec("sdk", SDK_COMMAND))
        server.wait_ready()
        assert [tool.name for tool in server.tools] == ["add", "fail"]
        assert result_text(server.call("add", {"a": 2, "b": 3})) == "5"
        assert "validation error" in result_text(server.call("add", {"a": "x"}))
        assert result_text(server.call("fail", {"message": "m"})).startswith("Error: ")


def test_an_address_without_a_server_is_an_error() -> None:
    with Connections() as connections:
        server = connections.open(ServerSpec("http", url=f"http://127.0.0.1:{free_port()}/mcp"))
        with pytest.raises(ServerError, match="the MCP server http did not start"):
            server.wait_ready()


def test_a_server_that_never_answers_is_ended() -> None:
    with Connections() as connections:
        server = connections.open(ServerSpec("silent", (*COMMAND, "silent")))
        with pytest.raises(ServerError, match="did not answer within 2 s"):
            server.wait_ready(2)
    children = psutil.Process().children(recursive=True)
    assert not [child for child in children if SCRIPT in command_line(child)]


def test_a_call_that_takes_too_long_is_an_error_and_the_next_one_works(tmp_path: Path) -> None:
    with Connections() as connections:
        server = connections.open(ServerSpec("s", COMMAND))
        server.wait_ready()
        with pytest.raises(ServerError, match="did not answer within 1 s"):
            server.call("wait", {"file": str(tmp_path / "pid")}, 1)
        assert server.is_alive


def test_a_message_without_an_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK would keep all of it, until the memory or the time of the call ends."""
    with Connections() as connections:
        server = connections.open(ServerSpec("s", (*COMMAND, "endless")))
        with pytest.raises(ServerError, match="writes no MCP messages, but other text"):
            server.wait_ready()


def test_only_what_is_too_long_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    from mcp.client import stdio

    monkeypatch.setattr(transport, "_MAX_MESSAGE_CHARACTERS", 10)
    bound_messages()
    chunks = ["ab\n", "x" * 8, "x" * 8, "x" * 99, "x\ncd\ne", "f\n"]

    class Source:
        async def receive(self, max_bytes: int = 0) -> bytes:
            return chunks.pop(0).encode()

    async def read() -> str:
        stream = stdio.TextReceiveStream(Source())  # type: ignore[attr-defined, arg-type]
        return "".join([await stream.receive() for _ in range(len(chunks))])

    assert anyio.run(read) == f"ab\n{'x' * 8}\ncd\nef\n"


def test_a_server_gets_no_variables_but_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Tokens in the environment are not for servers."""
    monkeypatch.setenv("HF_TOKEN", "a-secret-token")
    with Connections() as connections:
        server = connections.open(ServerSpec("s", COMMAND, env={"OWN": "yes"}))
        server.wait_ready()
        names = result_text(server.call("variables", {})).split()
    assert "OWN" in names and "PATH" in names and "HF_TOKEN" not in names


def test_tools_with_the_same_name_get_the_name_of_their_server() -> None:
    specs = [ServerSpec("one", COMMAND), ServerSpec("two", COMMAND)]
    with Toolbox(specs, ["one.add"]) as toolbox:
        toolbox.start(lambda error: pytest.fail(error.message))
        one, two = toolbox.tools["one_add"], toolbox.tools["two_add"]
        assert two.prepare({"a": "2", "b": 3}).run() == "5"
        assert toolbox.is_allowed(one) and not toolbox.is_allowed(two)
        with pytest.raises(UsageError, match="does not say which tool") as caught:
            toolbox.allow("add")
        assert caught.value.hint == "write one.add or two.add"
        assert toolbox.allow("two.add") == "two.add" and toolbox.is_allowed(two)


def test_tools_that_no_model_can_be_given_are_left_out() -> None:
    warnings: list[str] = []
    with Toolbox([ServerSpec("s", (*COMMAND, "strange"))]) as toolbox:
        toolbox.start(lambda error: warnings.append(error.message))
        names = set(toolbox.tools)
        assert len(toolbox.tools["wordy"].description) < 5000
    assert "add" in names and not {"a\x1b[31m b", "deep"} & names
    assert len(warnings) == 2 and all("cannot be used" in text for text in warnings)


def test_the_sdk_is_not_imported_without_servers() -> None:
    code = "import sys, swiftchat.chat.tools.toolbox as t; t.Toolbox([]).close()"
    check = f"{code}; sys.exit('mcp' in sys.modules or 'anyio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0
