"""Who may use the API: health without a token, servers without one, pages in browsers."""

import os
from http.client import HTTPConnection
from pathlib import Path

import pytest

from swiftchat.chat.endpoint.token import ApiToken, check_origins
from swiftchat.chat.model.model_server import ModelServer
from swiftchat.errors import UsageError
from tests.chat.endpoint.test_http import TOKEN, Served, serving
from tests.support.cases import each_case
from tests.support.fake_engine import make_folder
from tests.support.serve_processes import END_S, swiftchat

PAGE = "https://chat.example:8443"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "model")


def headers_of(served: Served, method: str, headers: dict[str, str]) -> tuple[int, dict[str, str]]:
    """Send a request about chat completions; return the status and the headers in lower case."""
    connection = HTTPConnection("127.0.0.1", served.port, timeout=END_S)
    body = '{"model": "model", "messages": [{"role": "user", "content": "hi"}]}'
    content = body if method == "POST" else None
    connection.request(method, "/v1/chat/completions", content, headers)
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status, {name.lower(): value for name, value in response.getheaders()}


def test_health_needs_no_token(folder: Path) -> None:
    with serving(folder) as served:
        assert served.request("/health", headers={}) == (200, {"status": "ok"})
        assert served.request("/health/x", headers={})[0] == 401
        assert served.request("/health", {}, headers={})[0] == 405


def test_a_short_token_of_the_user(folder: Path) -> None:
    with serving(folder, "hello", token=ApiToken("x")) as served:
        body = {"model": "model", "messages": [{"role": "user", "content": "hi"}]}
        for token, expected in (("y", 401), ("", 401), ("x", 200)):
            headers = {"Authorization": f"Bearer {token}"}
            assert served.request("/v1/chat/completions", body, headers)[0] == expected


def test_programs_of_this_machine_without_a_token(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SWIFTCHAT_API_TOKEN", raising=False)
    with serving(folder, *["hello"] * 4, token=None) as served:
        for headers in ({}, {"Host": "localhost"}, {"Host": "[::1]:80"}, {"Host": "127.0.0.2:80"}):
            assert headers_of(served, "POST", headers)[0] == 200
        server = ModelServer(f"http://127.0.0.1:{served.port}/v1", None)
        assert server._only_model() == "model"


@each_case(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:80"},
        {"Host": "localhost.evil.example"},
        {"Host": "192.168.0.1"},
        {"Origin": "null"},
        {"Origin": "http://localhost:3000"},
        {"Origin": PAGE + ".evil.example"},
        {"Origin": PAGE, "Host": "evil.example"},
    ],
)
def test_pages_may_not_use_a_server_without_a_token(headers: dict[str, str], folder: Path) -> None:
    """Nor by a name of another host that leads to this machine."""
    with serving(folder, token=None, origins=(PAGE,)) as served:
        assert headers_of(served, "POST", headers)[0] == 403
        assert served.engine.prompts == []


@pytest.mark.parametrize("token", [None, ApiToken(TOKEN)], ids=["without", "with"])
def test_pages_of_an_allowed_origin(token: ApiToken | None, folder: Path) -> None:
    with serving(folder, *["hello"] * 2, token=token, origins=(PAGE,)) as served:
        asked = {
            "Origin": PAGE,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization, content-type, x-stainless-os",
        }
        status, found = headers_of(served, "OPTIONS", asked)
        assert (status, found["access-control-allow-origin"]) == (200, PAGE)
        assert "x-stainless-os" in found["access-control-allow-headers"]
        sent = {"Origin": PAGE, "Authorization": f"Bearer {TOKEN}"}
        status, found = headers_of(served, "POST", sent)
        assert (status, found["access-control-allow-origin"]) == (200, PAGE)
        other = headers_of(served, "OPTIONS", {**asked, "Origin": "https://evil.example"})
        assert other[0] == 400 and "access-control-allow-origin" not in other[1]
        if token is not None:
            status, found = headers_of(served, "POST", {"Origin": PAGE})
            assert (status, found["access-control-allow-origin"]) == (401, PAGE)


def test_without_cors_no_page_is_allowed(folder: Path) -> None:
    with serving(folder, "hello") as served:
        sent = {"Origin": PAGE, "Authorization": f"Bearer {TOKEN}"}
        status, found = headers_of(served, "POST", sent)
        assert status == 200 and "access-control-allow-origin" not in found


@each_case("origin", ["example.com", "https://example.com/", "https://", "http://a b", "", "null"])
def test_what_is_no_origin(origin: str) -> None:
    with pytest.raises(UsageError, match="no origin"):
        check_origins([PAGE, origin], has_token=True)


def test_every_page_needs_a_token() -> None:
    check_origins(["*", PAGE], has_token=True)
    with pytest.raises(UsageError, match="every page"):
        check_origins(["*"], has_token=False)


@pytest.mark.parametrize("other", [("--allow-remote",), ("--token-file", os.devnull)])
def test_no_auth_is_for_this_machine(other: tuple[str, ...]) -> None:
    result = swiftchat("serve", "--openai", "127.0.0.1:0", "--no-auth", *other)
    assert result.returncode == 2 and b"--no-auth cannot be combined with" in result.stderr
    result = swiftchat("serve", "--openai", "0.0.0.0:0", "--no-auth")
    assert result.returncode == 2 and b"can be reached from other machines" in result.stderr
