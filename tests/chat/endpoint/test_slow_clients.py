"""Clients of the API that send nothing, or too slowly, keep no other client away."""

import contextlib
import json
import resource
import socket
import subprocess
import sys
from http.client import HTTPResponse
from pathlib import Path

import pytest

from swiftchat.chat.endpoint import body, protocol
from tests.chat.endpoint.test_http import TOKEN, Served, serving
from tests.support.fake_engine import make_folder
from tests.support.worker_processes import wait_until

HEAD = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"


def connected(served: Served, stack: contextlib.ExitStack, start: str = "") -> socket.socket:
    client = stack.enter_context(socket.create_connection(("127.0.0.1", served.port), 60))
    client.sendall(start.encode())
    return client


def is_closed(client: socket.socket) -> bool:
    """Wait until the server closes the connection, whatever it sends before."""
    with contextlib.suppress(ConnectionResetError):
        while client.recv(1 << 16):
            pass
    return True


def test_more_idle_connections_than_allowed_keep_no_client_away(tmp_path: Path) -> None:
    """Nobody of them has the token. The oldest ones make room, long before their time ends."""
    num_idle = protocol.MAX_CONNECTIONS + 20
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 4 * num_idle
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, hard), hard))
    with (
        serving(make_folder(tmp_path / "model"), "An answer.") as served,
        contextlib.ExitStack() as stack,
    ):
        starts = ("", "GET /v1/models HTTP/1.1\r\n", HEAD)
        idle = [connected(served, stack, starts[i % 3]) for i in range(num_idle)]
        assert served.chat()[0] == 200
        assert is_closed(idle[0])
        assert served.request("/v1/models")[0] == 200


def test_headers_have_a_limit_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEADERS_S", 0.3)
    with (
        serving(make_folder(tmp_path / "model"), "An answer.") as served,
        contextlib.ExitStack() as stack,
    ):
        assert is_closed(connected(served, stack))
        assert is_closed(connected(served, stack, HEAD))
        # A refused request whose body never comes, and the second request of a connection.
        refused = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc"
        assert is_closed(connected(served, stack, refused))
        whole = HEAD.replace("POST /v1/completions", "GET /v1/models") + "\r\n"
        assert is_closed(connected(served, stack, whole + "GET /v1/models HTTP/1.1\r\n"))


def test_each_byte_does_not_prolong_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEADERS_S", 1.0)
    with (
        serving(make_folder(tmp_path / "model"), "An answer.") as served,
        contextlib.ExitStack() as stack,
    ):
        client = connected(served, stack, HEAD)
        client.settimeout(0.05)
        with contextlib.suppress(ConnectionError):
            for _ in range(2000):
                client.sendall(b"X-A: b\r\n"[:1])
                with contextlib.suppress(TimeoutError):
                    if not client.recv(1):
                        return
            pytest.fail("the connection is still open")


def test_a_body_has_a_limit_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "BODY_S", 0.3)
    monkeypatch.setattr(protocol, "HEADERS_S", 0.3)
    with (
        serving(make_folder(tmp_path / "model"), "An answer.") as served,
        contextlib.ExitStack() as stack,
    ):
        client = connected(served, stack, HEAD + "Content-Length: 99\r\n\r\n{")
        text = b""
        while b"\r\n\r\n" not in text:
            text += client.recv(1 << 16)
        assert text.startswith(b"HTTP/1.1 408 ") and is_closed(client)


def test_a_long_answer_is_not_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEADERS_S", 0.2)
    answer = {"text": "word " * 8, "delay_s": 0.05}
    with serving(make_folder(tmp_path / "model"), answer) as served:
        status, found = served.chat()
        assert status == 200 and found["choices"][0]["message"]["content"].strip()


IDLE_CLIENTS = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]),) * 2)
clients = [socket.create_connection(("127.0.0.1", int(sys.argv[1])), 60) for _ in range(300)]
print("connected", flush=True)
sys.stdin.read()
"""


def test_idle_connections_leave_files_to_open(tmp_path: Path) -> None:
    """Where a process may open only 256 files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with serving(make_folder(tmp_path / "model"), "An answer.") as served:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        command = [sys.executable, "-c", IDLE_CLIENTS, str(served.port), str(min(hard, 1024))]
        pipes: dict[str, int] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        try:
            with subprocess.Popen(command, **pipes) as idle:  # type: ignore[call-overload]
                assert idle.stdout.readline() == b"connected\n"
                assert served.chat()[0] == 200
                idle.stdin.close()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_errors_below_the_application_have_the_format_of_the_others(tmp_path: Path) -> None:
    with (
        serving(make_folder(tmp_path / "model"), "An answer.") as served,
        contextlib.ExitStack() as stack,
    ):
        for start in (
            "\x16\x03\x01\r\n\r\n",
            "GET\r\n\r\n",
            "GET /\x7f HTTP/1.1\r\n\r\n",
        ):
            client = connected(served, stack, start)
            response = HTTPResponse(client)
            response.begin()
            error = json.loads(response.read())["error"]
            assert response.status == 400 and error["type"] == "invalid_request_error"
            assert response.headers["connection"] == "close" and is_closed(client)


def test_connections_above_the_limit_get_an_error_if_none_can_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "MAX_CONNECTIONS", 3)
    with (
        serving(make_folder(tmp_path / "model"), "An answer.") as served,
        contextlib.ExitStack() as stack,
    ):
        # With the token, and a body that does not come.
        start = f"{HEAD}Expect: 100-continue\r\nContent-Length: 9\r\n\r\n"
        busy = []
        for _ in range(2):
            busy.append(connected(served, stack, start))
            assert busy[-1].recv(1 << 10).startswith(b"HTTP/1.1 100 ")
        status, answer = served.chat()
        assert status == 503 and answer["error"]["code"] == "busy"
        busy[0].close()
        wait_until(lambda: served.chat()[0] == 200, 60)
