"""Invalid answers and failures of the hub: distinct errors, nothing written, no token shown."""

import json
import socket
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from swiftchat.errors import (
    BadModelFile,
    DownloadError,
    ModelNotFound,
    SwiftchatError,
    UsageError,
)
from swiftchat.weights.download import DownloadPlan, download, plan_download
from swiftchat.weights.hub.listing import is_revision
from swiftchat.weights.store import Store
from tests.support.fake_hub import MODEL, FakeHub, Fault, in_use

REPO = "owner/model"
TOKEN = "hf_canarycanarycanary"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with in_use(FakeHub(dict(MODEL), REPO), monkeypatch) as hub:
        yield hub


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models", tmp_path / "cache", tmp_path / "hub")


@pytest.mark.parametrize(
    "revision",
    [
        "../..",
        "..",
        "a/../../b",
        "/etc/x",
        "a//b",
        "a/",
        ".git",
        "a/.b",
        "a\\b",
        "a\n",
        "x\x00",
        "-f",
        "",
        "x" * 2000,
    ],
)
def test_a_revision_is_no_path_out_of_the_cache(revision: str, hub: FakeHub, store: Store) -> None:
    with pytest.raises(UsageError, match="is not a revision"):
        plan_download(REPO, store, revision=revision)
    assert hub.log == [] and not store.hub_folder().exists()


@pytest.mark.parametrize("revision", ["v1.0", "refs/pr/1", "a-b_c", "0123abcd", "größe"])
def test_names_of_branches_and_tags_are_revisions(revision: str) -> None:
    assert is_revision(revision)


# Invalid listings


@pytest.mark.fault(30)
@pytest.mark.parametrize(
    "name",
    [
        "../evil.json",
        "/etc/evil.json",
        "a/../../b.json",
        "a\\b.json",
        "C:evil.json",
        "a//b.json",
        "./b.json",
        "",
        "nul\0.json",
        "esc\x1b[2J.json",
        7,
        None,
    ],
)
def test_unsafe_file_names_raise_an_error(hub: FakeHub, store: Store, name: object) -> None:
    hub.extra_siblings = [{"rfilename": name, "size": 1, "blobId": "0" * 40}]
    with pytest.raises(BadModelFile, match="outside the repository"):
        download(REPO, store)
    assert not store.hub_folder().exists()


@pytest.mark.parametrize(
    ("sibling", "message"),
    [
        ({"blobId": "../../../../evil"}, "checksum of x.json"),
        ({"blobId": None}, "checksum of x.json"),
        ({"lfs": {"sha256": "../evil", "size": 1}}, "checksum of x.json"),
        ({"size": -1}, "size of x.json"),
        ({"size": 2**70}, "size of x.json"),
        ({"size": "1"}, "size of x.json"),
    ],
)
def test_invalid_sizes_and_digests_raise_an_error(
    hub: FakeHub, store: Store, sibling: dict[str, Any], message: str
) -> None:
    right = {"rfilename": "x.json", "size": 1, "blobId": "0" * 40}
    hub.extra_siblings = [{**right, **sibling}]
    with pytest.raises(BadModelFile, match=message):
        download(REPO, store)
    assert not store.hub_folder().exists()


@pytest.mark.parametrize("commit", ["../../../evil", "", "c0ffee"])
def test_an_invalid_commit_raises_an_error(hub: FakeHub, store: Store, commit: str) -> None:
    hub.commit = commit
    with pytest.raises(BadModelFile, match="40 hexadecimal digits"):
        download(REPO, store)


@pytest.mark.fault(30)
@pytest.mark.parametrize(
    "shard",
    [
        "../../evil.safetensors",
        "/etc/passwd",
        "gone.safetensors",
        "onnx/a.safetensors",
        "README.md",
        3,
    ],
)
def test_an_index_with_unknown_files_is_rejected_before_the_weights(
    hub: FakeHub, store: Store, shard: object
) -> None:
    hub.files["model-1.safetensors"] = hub.files.pop("model.safetensors")
    hub.files["onnx/a.safetensors"] = b"listed, but not in the top folder"
    index = {"weight_map": {"a": "model-1.safetensors", "b": shard}}
    hub.files["model.safetensors.index.json"] = json.dumps(index).encode()
    with pytest.raises(BadModelFile, match=r"tensor b: .* is not a weight file of the model"):
        download(REPO, store)
    assert hub.ranges("model-1.safetensors") == []


@pytest.mark.parametrize("answer", ["[]", "{}", '{"weight_map": 1}', "[" * 100_000])
def test_an_invalid_index_raises_an_error(hub: FakeHub, store: Store, answer: str) -> None:
    hub.files["model-1.safetensors"] = hub.files.pop("model.safetensors")
    hub.files["model.safetensors.index.json"] = answer.encode()
    with pytest.raises(BadModelFile, match="safetensors index"):
        download(REPO, store)
    assert hub.ranges("model-1.safetensors") == []


def test_an_index_with_a_wrong_digest_raises_an_error(hub: FakeHub, store: Store) -> None:
    hub.files["model-1.safetensors"] = hub.files.pop("model.safetensors")
    right = json.dumps({"weight_map": {"a": "model-1.safetensors"}}).encode()
    hub.files["model.safetensors.index.json"] = right
    hub.faults["model.safetensors.index.json"] = Fault(sends=right.replace(b'"a"', b'"b"'))
    with pytest.raises(BadModelFile, match="differs from the hub's list"):
        download(REPO, store)
    assert hub.ranges("model-1.safetensors") == []


@pytest.mark.usefixtures("hub")
def test_a_listing_has_a_size_limit(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swiftchat.weights.hub.client._MAX_LISTING_BYTES", 500)
    with pytest.raises(BadModelFile, match="larger than 500 bytes"):
        download(REPO, store)


def test_a_symbolic_link_in_the_repository_is_a_text_file(hub: FakeHub, store: Store) -> None:
    """Git stores a symbolic link as a text file with its target, and the hub sends that text."""
    hub.files["generation_config.json"] = b"../../../../etc/passwd"
    path = download(REPO, store) / "generation_config.json"
    assert path.read_bytes() == b"../../../../etc/passwd"
    assert path.resolve().is_relative_to(store.hub_folder().resolve())
    assert not path.resolve().is_symlink()


@pytest.mark.parametrize(
    "answer", [b"<html>", b"[]", b'{"sha": 1}', b"[" * 100_000, b'{"sha": "' + b"0" * 40 + b'"}']
)
def test_an_answer_of_another_server_raises_an_error(
    hub: FakeHub, store: Store, answer: bytes
) -> None:
    hub.faults["api"] = Fault(sends=answer)
    with pytest.raises(BadModelFile if answer[:1] == b"{" or answer == b"[]" else DownloadError):
        download(REPO, store)


# Each failure has its own error, none shows the token

FAILURES: dict[str, tuple[str, Fault, type[SwiftchatError], str, str]] = {
    "401": ("api", Fault(status=401), DownloadError, "rejected the token", "HF_TOKEN"),
    "403": ("api", Fault(status=403), DownloadError, "forbids access", "token"),
    "gated": (
        "model.safetensors",
        Fault(status=403, headers={"X-Error-Code": "GatedRepo"}),
        DownloadError,
        "is gated",
        "accept its conditions",
    ),
    "404": ("api", Fault(status=404), ModelNotFound, "no model owner/model", "name"),
    "no file": (
        "odd[1].json",
        Fault(status=404, headers={"X-Error-Code": "EntryNotFound"}),
        DownloadError,
        "does not have it",
        "",
    ),
    "revision": (
        "api",
        Fault(status=404, headers={"X-Error-Code": "RevisionNotFound"}),
        ModelNotFound,
        "no revision 'main'",
        "",
    ),
    "407": ("api", Fault(status=407), DownloadError, "proxy requires authentication", "PROXY"),
    "429": ("api", Fault(status=429), DownloadError, "HTTP 429", "later"),
    "429 seconds": (
        "api",
        Fault(status=429, headers={"Retry-After": "37"}),
        DownloadError,
        "HTTP 429",
        "in 37 s",
    ),
    "429 date": (
        "model.safetensors",
        Fault(status=429, headers={"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
        DownloadError,
        "HTTP 429",
        "in 0 s",
    ),
    "500": ("api", Fault(status=500), DownloadError, "HTTP 500", "later"),
    "503": ("model.safetensors", Fault(status=503), DownloadError, "HTTP 503", "later"),
    "418": ("api", Fault(status=418), DownloadError, "HTTP 418", "later"),
    "silent": ("api", Fault(stall_after=0), DownloadError, "timed out", "network"),
    "stalled": (
        "model.safetensors",
        Fault(stall_after=0),
        DownloadError,
        "timed out",
        "network",
    ),
    "cut off": ("api", Fault(cut_after=5), DownloadError, "was lost", "network"),
}


@pytest.mark.fault(29, 40)
@pytest.mark.parametrize("name", FAILURES)
def test_each_failure_has_its_own_error_without_the_token(
    hub: FakeHub, store: Store, name: str
) -> None:
    where, fault, kind, message, hint = FAILURES[name]
    hub.faults[where] = fault
    started = time.monotonic()
    with pytest.raises(kind, match=message) as caught:
        download(REPO, store, token=TOKEN)
    assert time.monotonic() - started < 60  # not the minutes that libraries wait by default
    assert hint in caught.value.hint
    assert caught.value.exit_code == (3 if kind is ModelNotFound else 6)
    shown = "".join(traceback.format_exception(caught.value)) + caught.value.hint
    assert TOKEN not in shown and any(request.authorization for request in hub.log)


def test_a_missing_token_has_its_own_error(hub: FakeHub, store: Store) -> None:
    hub.faults["api"] = Fault(status=401)
    with pytest.raises(DownloadError, match="private or does not exist"):
        download(REPO, store)


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.fault(40)
@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        ("http://127.0.0.1:{port}", "refused the connection"),
        (
            "http://no.such.host.invalid",
            r"the host name no\.such\.host\.invalid cannot be resolved",
        ),
        ("nonsense", "request to .* failed"),
    ],
)
def test_an_unreachable_hub(
    store: Store, monkeypatch: pytest.MonkeyPatch, endpoint: str, message: str
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", endpoint.format(port=closed_port()))
    with pytest.raises(DownloadError, match=message) as caught:
        download(REPO, store, token=TOKEN)
    # Without the text of the HTTP library, which may quote addresses and headers.
    assert "requests.exceptions" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.usefixtures("hub")
def test_a_hub_with_an_untrusted_certificate(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", constants.ENDPOINT.replace("http:", "https:"))
    with pytest.raises(DownloadError, match="no trusted connection"):
        download(REPO, store)


@pytest.mark.usefixtures("hub")
def test_an_unreachable_proxy_is_reported_without_its_password(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://user:secret@127.0.0.1:{closed_port()}")
    monkeypatch.setattr(constants, "ENDPOINT", "http://hub.invalid")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises(DownloadError, match=r"proxy for hub\.invalid failed") as caught:
        download(REPO, store)
    assert "secret" not in "".join(traceback.format_exception(caught.value)) + caught.value.hint


@pytest.mark.fault(29)
def test_the_token_is_sent_only_to_the_hub(
    hub: FakeHub, store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password other\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    download(REPO, store, token=TOKEN)
    sent = {
        server: {r.authorization for r in hub.log if r.server == server}
        for server in ("hub", "storage")
    }
    assert sent["hub"] == {f"Bearer {TOKEN}"}
    assert not any(TOKEN in (header or "") for header in sent["storage"])
    stored = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(TOKEN.encode() in path.read_bytes() for path in stored)
    assert TOKEN not in repr(plan_download(REPO, store, token=TOKEN))


@pytest.mark.fault(29)
@pytest.mark.parametrize("token", [f"{TOKEN}\n", f"{TOKEN} x", "ö", ""])
def test_a_malformed_token_is_rejected_and_not_shown(
    hub: FakeHub, store: Store, token: str
) -> None:
    with pytest.raises(DownloadError, match="invalid characters") as caught:
        download(REPO, store, token=token)
    assert TOKEN not in str(caught.value) and hub.log == []


def test_the_stored_token_is_used(
    hub: FakeHub, store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    plan_download(REPO, store)
    assert hub.log[-1].authorization == f"Bearer {TOKEN}"


@pytest.mark.fault(40)
def test_a_stored_model_works_without_the_hub(
    hub: FakeHub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = download(REPO, store)
    hub.faults["api"] = Fault(status=503)
    hub.log.clear()
    assert store.resolve(REPO) == store.resolve(REPO, offline=True) == path and hub.log == []
    with pytest.raises(DownloadError) as caught:
        download(REPO, store)
    assert f"swiftchat -m {REPO}" in caught.value.hint
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.log.clear()
    assert store.resolve(REPO) == path
    with pytest.raises(DownloadError, match="offline mode") as caught:
        download(REPO, store)
    assert "HF_HUB_OFFLINE" in caught.value.hint and hub.log == []


# Names


@pytest.mark.parametrize("name", ["nothing", "a/b/c", "../x", "owner/", "/etc/passwd", "a b/c", ""])
def test_invalid_names_send_no_request(hub: FakeHub, store: Store, name: str) -> None:
    with pytest.raises(ModelNotFound, match="not a model name") as caught:
        download(name, store)
    assert "OWNER/NAME" in caught.value.hint and hub.log == []


def test_a_short_name_selects_its_repository(
    hub: FakeHub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repo = "Qwen/Qwen3-8B"
    found: DownloadPlan = plan_download("Qwen3:8B-16bit", store)
    assert found.repo == "Qwen/Qwen3-8B"
    # An installed form is that of the model's name.
    assert found.run(None) == store.resolve("qwen3:8b-16bit") == store.resolve("qwen3:8b")


def test_the_owners_spelling_is_kept(hub: FakeHub, store: Store) -> None:
    path = download("Owner/MODEL", store, token=TOKEN)
    assert path.parts[-3] == "models--owner--model" and store.resolve("OWNER/model") == path
    assert hub.log[1].authorization == f"Bearer {TOKEN}"


def test_a_password_in_the_endpoint_is_not_shown(
    hub: FakeHub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = constants.ENDPOINT.replace("//", "//me:secret@")
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    for fault in (Fault(status=403, headers={"X-Error-Code": "GatedRepo"}), Fault(status=500)):
        hub.faults["model.safetensors"] = fault
        with pytest.raises(DownloadError) as caught:
            download(REPO, store)
        assert "secret" not in "".join(traceback.format_exception(caught.value))
        assert "secret" not in caught.value.hint


def test_an_unknown_short_name_suggests_the_nearest(hub: FakeHub, store: Store) -> None:
    with pytest.raises(ModelNotFound) as caught:
        download("qwen3:9b", store)
    assert "qwen3:8b" in caught.value.hint and hub.log == []
    with pytest.raises(ModelNotFound, match="'zzz' is not a model name") as caught:
        download("zzz", store)
    assert caught.value.hint.endswith("swiftchat models lists short names")
    with pytest.raises(ModelNotFound) as caught:
        download("smolm2:135m", store)
    assert "smollm2:135m" in caught.value.hint
