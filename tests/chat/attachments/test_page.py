"""Pages as attachments: HTML, types, sizes, redirects, faults, no secrets in errors."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from swiftchat.chat.attachments import page
from swiftchat.chat.attachments.files import read_attachments
from swiftchat.errors import DownloadError, UsageError
from tests.support import documents
from tests.support.web_server import Answer, serving

HTML = """<!doctype html><html><head><title>The  title</title><style>p {}</style></head><body>
<script>alert("no")</script><nav><a href="/home">Home</a></nav>
<h2>Part</h2><p>Some <b>bold</b> text\x1b[31m with a <a href="https://x.test/long">link</a>.</p>
<ul><li>one</li><li>two</li></ul><pre><code>x = 1
y = 2</code></pre><img src="data:image/png;base64,AAAA" alt="A picture"><table><tr><th>a</th></tr>
<tr><td>1</td></tr></table></body></html>"""
ANSWERS = {
    "/page": Answer(HTML.encode(), "text/html; charset=utf-8"),
    "/latin": Answer("<p>Käse</p>".encode("latin-1"), "text/html; charset=latin-1"),
    "/meta": Answer('<meta charset="latin-1"><p>Käse</p>'.encode("latin-1"), "text/html"),
    "/odd-charset": Answer("Käse".encode(), "text/plain; charset=nonsense"),
    "/nested": Answer(b"<div>" * 20_000 + b"deep", "text/html"),
    "/plain": Answer("Käse\x1b[2J\r\n".encode()),
    "/json": Answer(b'{"a": 1}', "application/problem+json"),
    "/no-type": Answer(b"words", None),
    "/report": Answer(documents.pdf("One.", "Two."), "application/pdf"),
    "/picture": Answer(b"\x89PNG", "image/png"),
    "/binary": Answer(b"a\0b", "text/plain"),
    "/large": Answer(b"x" * (4 * 1024 * 1024 + 1)),
    "/failed": Answer(b"secret", status=503),
    "/moved": Answer(status=302, headers={"Location": "/page"}),
    "/loop": Answer(status=302, headers={"Location": "/loop"}),
    "/to-file": Answer(status=302, headers={"Location": "file:///etc/passwd"}),
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[str]]]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(ANSWERS) as served:
        yield served


def test_html_becomes_markdown(server: tuple[str, list[str]]) -> None:
    url, _ = server
    (found,) = read_attachments([f"{url}/page#part"])
    assert found.name == f"{url}/page"
    lines = found.text.splitlines()
    assert lines[:2] == ["The title", ""]
    for line in ("## Part", "Some **bold** text␛[31m with a link.", "* one", "x = 1", "| a |"):
        assert line in lines
    for text in ("alert", "p {}", "base64", "x.test", "\n\n\n", "\x1b"):
        assert text not in found.text


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("latin", "Käse\n"),
        ("meta", "Käse\n"),
        ("odd-charset", "Käse"),
        ("nested", "deep\n"),
        ("plain", "Käse␛[2J\n"),
        ("json", '{"a": 1}'),
        ("no-type", "words"),
    ],
)
def test_texts(server: tuple[str, list[str]], path: str, text: str) -> None:
    assert page.fetch_page(f"{server[0]}/{path}").text == text


def test_a_redirect_is_followed(server: tuple[str, list[str]]) -> None:
    assert "## Part" in page.fetch_page(f"{server[0]}/moved").text


@pytest.mark.parametrize(
    ("path", "error", "problem"),
    [
        ("picture", UsageError, "type image/png"),
        ("binary", UsageError, "not a text"),
        ("large", UsageError, "larger than 4 MiB"),
        ("failed", DownloadError, "HTTP status 503"),
        ("none", DownloadError, "HTTP status 404"),
        ("loop", DownloadError, "more than 5 redirects"),
        ("to-file", DownloadError, "cannot be fetched"),
    ],
)
def test_faults(
    server: tuple[str, list[str]], path: str, error: type[Exception], problem: str
) -> None:
    with pytest.raises(error, match=problem):
        page.fetch_page(f"{server[0]}/{path}")
    assert len(server[1]) <= 6


def test_a_slow_page_ends(server: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "_TOTAL_S", -1.0)
    with pytest.raises(DownloadError, match="took longer"):
        page.fetch_page(f"{server[0]}/page")


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"])
def test_a_page_that_comes_byte_by_byte_ends(start: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither headers nor a body prolong the time by parts that come always in time."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(page, "_TOTAL_S", 0.5)
    is_over = threading.Event()

    def trickle(listening: socket.socket) -> None:
        with listening.accept()[0] as peer, contextlib.suppress(OSError):
            peer.sendall(start)
            while not is_over.wait(0.02):
                peer.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        sender = threading.Thread(target=trickle, args=(listening,))
        sender.start()
        try:
            with pytest.raises(DownloadError, match="took longer than"):
                page.fetch_page(f"http://127.0.0.1:{listening.getsockname()[1]}/")
        finally:
            is_over.set()
            sender.join()


def test_offline_requests_nothing(server: tuple[str, list[str]]) -> None:
    url, requested = server
    with pytest.raises(UsageError, match="network"):
        read_attachments([f"{url}/page"], offline=True)
    assert requested == []


@pytest.mark.parametrize("url", ["http://", "https://[::1", "http://user:pass@:80/", "http:// x/"])
def test_invalid_addresses(url: str) -> None:
    with pytest.raises((UsageError, DownloadError), match=r"not an address|not valid|fetched"):
        page.fetch_page(url)


def test_errors_and_names_have_no_password(server: tuple[str, list[str]]) -> None:
    with_password = server[0].replace("//", "//user:canary@")
    assert "canary" not in page.fetch_page(f"{with_password}/page").name
    for url in (f"{with_password}/none", "http://user:canary@127.0.0.1:9/x"):
        with pytest.raises(DownloadError) as caught:
            page.fetch_page(url)
        assert "canary" not in f"{caught.value.message} {caught.value.hint}"


def test_a_document_at_an_address(server: tuple[str, list[str]]) -> None:
    pytest.importorskip("pypdf")
    url, _ = server
    (found,) = read_attachments([f"{url}/report#2"])
    assert (found.name, found.text) == (f"{url}/report#2", "## Page 2\n\nTwo.\n")
