"""A hub over HTTP on loopback: one model, a storage server for its large files, and faults.

It uses real sockets and the hub's paths, headers and error codes, so that both our client and
huggingface_hub work with it. `log` has one entry per request.
"""

import hashlib
import json
import random
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from huggingface_hub import constants

COMMIT = "c0ffee" + "0" * 34
WEIGHTS = random.Random(0).randbytes(1_000_000)
MODEL = {
    "config.json": b"{}",
    "tokenizer.json": b'{"a": 1}',
    "model.safetensors": WEIGHTS,
    "README.md": b"# Model",
    "additional_chat_templates/tools.jinja": b"{{ tools }}",
    "model.gguf": b"GGUF",
    "pytorch_model.bin": b"pickle",
    "original/consolidated.00.pth": b"pickle",
    "consolidated.safetensors": b"again",
    "onnx/model.onnx": b"onnx",
    "onnx/config.json": b"[]",
    "odd[1].json": b"1",
}
_PROXIES = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


@dataclass
class Request:
    server: str  # "hub" or "storage"
    method: str
    path: str
    range: str | None
    authorization: str | None
    encoding: str | None


@dataclass
class Fault:
    """A fault in requests for one file, or for "api", the list of files.

    `status` is the status of the answer. After `cut_after` bytes of the answer the connection is
    closed, after `stall_after` bytes nothing more is sent. `sends` replaces the content;
    `no_ranges` ignores Range headers; `times` is the number of requests with the fault, after
    those that `after` counts, which have none. A request
    sets `arrived`; the answer is sent when `waits_for` is set. A stalled connection is closed when
    `stalls_until` is set.
    """

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    stall_after: int | None = None
    sends: bytes | None = None
    no_ranges: bool = False
    delay_s: float = 0.0
    arrived: threading.Event = field(default_factory=threading.Event)
    waits_for: threading.Event | None = None
    stalls_until: threading.Event | None = None
    times: int = 1_000_000
    after: int = 0


class FakeHub:
    """The state of the server; .safetensors, .gguf and .bin files are on the storage server."""

    def __init__(self, files: dict[str, bytes], repo: str = "owner/model") -> None:
        self.files = files
        self.repo = repo
        self.faults: dict[str, Fault] = {}
        self.log: list[Request] = []
        self.card: dict[str, Any] = {"license": "apache-2.0"}
        self.commit = COMMIT
        self.extra_siblings: list[Any] = []
        self.popular: list[Any] = []  # the answer to a search
        self.former_repo: str | None = None  # a name that the repository had before
        self.closing = threading.Event()

    def listing(self) -> dict[str, Any]:
        siblings = [self._sibling(name, content) for name, content in self.files.items()]
        return {
            "id": self.repo,
            "modelId": self.repo,
            "sha": self.commit,
            "cardData": self.card,
            "tags": [],
            "siblings": [*siblings, *self.extra_siblings],
        }

    def _sibling(self, name: str, content: bytes) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "rfilename": name,
            "size": len(content),
            "blobId": git_digest(content),
        }
        if is_large(name):
            sha256 = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 134}
        return entry

    def tree(self) -> list[dict[str, Any]]:
        """Return the listing in the format that huggingface_hub requests."""
        rows = []
        for name, content in self.files.items():
            row = {"type": "file", "path": name, "size": len(content), "oid": git_digest(content)}
            if is_large(name):
                sha256 = hashlib.sha256(content).hexdigest()
                row["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 134}
            rows.append(row)
        return rows

    def ranges(self, name: str) -> list[str | None]:
        """Return the Range headers of all requests for a file, in order."""
        return [
            request.range
            for request in self.log
            if request.method == "GET"
            and request.path.endswith(f"/{name}")
            and (request.server == "storage" or not is_large(name))
        ]

    def fault(self, name: str) -> Fault:
        """Return the fault of this request and count it."""
        found = self.faults.get(name, Fault())
        if found.after > 0:
            found.after -= 1
            return Fault()
        found.times -= 1
        return found if found.times >= 0 else Fault()


def is_large(name: str) -> bool:
    return name.endswith((".safetensors", ".gguf", ".bin"))


def git_digest(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def serving(hub: FakeHub) -> Iterator[str]:
    """Serve `hub` until the context ends; yields its address."""
    storage = _server(hub, "storage", "")
    main = _server(hub, "hub", f"http://127.0.0.1:{storage.server_port}")
    threads = [threading.Thread(target=s.serve_forever, args=(0.02,)) for s in (main, storage)]
    for thread in threads:
        thread.start()
    try:
        yield f"http://127.0.0.1:{main.server_port}"
    finally:
        hub.closing.set()
        for server in (main, storage):
            server.shutdown()
            server.server_close()
        for thread in threads:
            thread.join()


@contextmanager
def in_use(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Serve `hub` as the hub of this process: no token, no proxy, a read timeout of a second."""
    for name in (*_PROXIES, "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 1)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nonexistent/token")
    with serving(hub) as url:
        monkeypatch.setattr(constants, "ENDPOINT", url)
        yield hub


@contextmanager
def in_environment(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Serve `hub` as the hub of the programs that this process starts; they read for 60 s."""
    for name in (*_PROXIES, "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "60")
    with serving(hub) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        yield hub


def _server(hub: FakeHub, role: str, storage_url: str) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            """Log nothing."""

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
            hub.log.append(
                Request(
                    role,
                    self.command,
                    path,
                    self.headers.get("Range"),
                    self.headers.get("Authorization"),
                    self.headers.get("Accept-Encoding"),
                )
            )
            if role == "storage":
                self._content(path.removeprefix("/"))
            elif hub.former_repo is not None and f"/{hub.former_repo}/" in path:
                self._send(307, b"", {"Location": self.path.replace(hub.former_repo, hub.repo)})
            elif path == "/api/models":
                self._send(200, json.dumps(hub.popular).encode(), {})
            elif path.startswith("/api/models/"):
                self._api(path.removeprefix("/api/models/"))
            else:
                self._resolve(path.removeprefix(f"/{hub.repo}/resolve/").partition("/")[2])

        def _api(self, request: str) -> None:
            if self._send_fault(fault := hub.fault("api")):
                return
            repo, _, revision = request.partition("/revision/")
            if request == f"{hub.repo}/tree/{hub.commit}":
                self._send(200, json.dumps(hub.tree()).encode(), {})
            elif repo != hub.repo and repo.lower() == hub.repo.lower():
                self._send(307, b"", {"Location": self.path.replace(repo, hub.repo)})
            elif repo != hub.repo:
                self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            elif revision not in ("", "main", hub.commit):
                self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            else:
                text = json.dumps(hub.listing()).encode() if fault.sends is None else fault.sends
                self._send(200, text, {"Content-Type": "application/json"}, fault)

        def _resolve(self, name: str) -> None:
            if name not in hub.files:
                self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            elif not is_large(name):
                self._content(name)
            elif not self._send_fault(hub.fault(f"resolve {name}")):
                content = hub.files[name]
                self._send(
                    302,
                    b"",
                    {
                        "Location": f"{storage_url}/{urllib.parse.quote(name)}?signature=x",
                        "X-Linked-Etag": f'"{hashlib.sha256(content).hexdigest()}"',
                        "X-Linked-Size": str(len(content)),
                        "X-Repo-Commit": hub.commit,
                    },
                )

        def _content(self, name: str) -> None:
            if self._send_fault(fault := hub.fault(name)):
                return
            content = hub.files[name] if fault.sends is None else fault.sends
            headers = {
                "X-Repo-Commit": hub.commit,
                "ETag": f'"{git_digest(hub.files[name])}"',
                "Accept-Ranges": "bytes",
            }
            requested = self.headers.get("Range")
            if requested is None or fault.no_ranges:
                self._send(200, content, headers, fault)
                return
            start = int(requested.removeprefix("bytes=").partition("-")[0])
            if start >= len(content):
                self._send(416, b"", headers)
                return
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self._send(206, content[start:], headers | fault.headers, fault)

        def _send_fault(self, fault: Fault) -> bool:
            time.sleep(fault.delay_s)
            fault.arrived.set()
            if fault.waits_for is not None:
                fault.waits_for.wait(60)
            if fault.status is not None:
                self._send(fault.status, b"no", fault.headers)
            return fault.status is not None

        def _send(
            self, status: int, body: bytes, headers: dict[str, str], fault: Fault | None = None
        ) -> None:
            fault = fault or Fault()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "HEAD":
                return
            limits = [n for n in (fault.cut_after, fault.stall_after) if n is not None]
            self.wfile.write(body[: min(limits, default=len(body))])
            self.wfile.flush()
            if fault.stall_after is not None:
                (fault.stalls_until or hub.closing).wait(60)
            if limits:
                self.close_connection = True

    class Server(ThreadingHTTPServer):
        def handle_error(self, *args: Any) -> None:
            """Ignore closed connections, which some tests cause."""
            if not isinstance(sys.exception(), ConnectionError):
                super().handle_error(*args)

    return Server(("127.0.0.1", 0), Handler)
