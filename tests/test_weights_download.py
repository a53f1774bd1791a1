"""download from a hub on loopback: what comes, where it goes, and every way it can fail."""

import errno
import hashlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from fake_hub import COMMIT, FakeHub, Fault, serving
from huggingface_hub import constants

from swiftchat.errors import (
    BadModelFile,
    DownloadError,
    FileSystemError,
    ModelNotFound,
    SwiftchatError,
)
from swiftchat.weights.download import Offer, download, offer
from swiftchat.weights.hub_cache import HubCache
from swiftchat.weights.store import Store

REPO = "owner/model"
TOKEN = "hf_canarycanarycanary"
WEIGHTS = random.Random(0).randbytes(1_000_000)
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()
FILES = {
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
DEFAULT = [
    "README.md", "additional_chat_templates/tools.jinja", "config.json", "model.safetensors",
    "odd[1].json", "tokenizer.json",
]  # fmt: skip


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    hub = FakeHub(dict(FILES), REPO)
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 1)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nonexistent/token")
    with serving(hub) as url:
        monkeypatch.setattr(constants, "ENDPOINT", url)
        yield hub


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models", tmp_path / "cache", tmp_path / "hub")


def blobs(store: Store) -> Path:
    return store.hub_folder() / "models--owner--model" / "blobs"


def names(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


# What comes


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, DEFAULT),
        ({"include": ["*.gguf"]}, sorted([*DEFAULT, "model.gguf"])),
        ({"exclude": ["README*", "odd*", "add*"]},
         ["config.json", "model.safetensors", "tokenizer.json"]),
        ({"include": ["onnx/*"], "exclude": ["*.json", "*.jinja"]},
         ["README.md", "model.safetensors", "onnx/model.onnx"]),
    ],
)  # fmt: skip
def test_only_what_is_needed_comes(store: Store, options: Any, wanted: list[str]) -> None:
    reports: list[tuple[str, int, int]] = []
    found = offer(REPO, store, **options)
    assert (found.repo, found.license) == (REPO, "apache-2.0")
    path = found.bring(lambda *report: reports.append(report))
    assert path == store.hub_folder() / "models--owner--model" / "snapshots" / COMMIT
    assert names(path) == wanted
    assert all((path / name).read_bytes() == FILES[name] for name in wanted)
    total = sum(len(FILES[name]) for name in wanted)
    assert found.size_bytes == found.missing_bytes == total
    assert reports[-1] == (f"downloading {REPO}", total, total)
    assert all(done <= total for _, done, _ in reports)


def test_of_several_copies_of_the_weights_only_the_indexed_comes(
    hub: FakeHub, store: Store
) -> None:
    del hub.files["model.safetensors"]
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    weight_map = {f"layer.{i}": shard for i, shard in enumerate(shards)}
    hub.files |= {
        "model.safetensors.index.json": json.dumps({"weight_map": weight_map}).encode(),
        "model.fp32.safetensors": b"another copy", **dict.fromkeys(shards, WEIGHTS[:999]),
    }  # fmt: skip
    found = names(download(REPO, store))
    assert [name for name in found if name.endswith(".safetensors")] == shards


def by_the_library(cache: Path) -> Path:
    """Download with the hub's library; in a process, as it keeps its address from its import."""
    script = (
        "import sys, huggingface_hub\n"
        "print(huggingface_hub.snapshot_download(sys.argv[1], cache_dir=sys.argv[2]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, REPO, str(cache)], capture_output=True, check=True,
        env={**os.environ, "HF_ENDPOINT": constants.ENDPOINT},
    )  # fmt: skip
    return Path(done.stdout.decode().strip())


def test_the_hubs_library_makes_and_finds_the_same_cache(
    hub: FakeHub, store: Store, tmp_path: Path
) -> None:
    ours = download(REPO, store)
    theirs = by_the_library(tmp_path / "theirs")
    for name in DEFAULT:
        assert (ours / name).readlink() == (theirs / name).readlink()
    main = Path("models--owner--model/refs/main")
    assert (store.hub_folder() / main).read_text() == (tmp_path / "theirs" / main).read_text()
    found = huggingface_hub.snapshot_download(
        REPO, cache_dir=store.hub_folder(), local_files_only=True, allow_patterns=["config.json"]
    )
    assert Path(found) == ours == store.resolve(REPO)
    there = Store(store.root, store.cache, tmp_path / "theirs")
    assert offer(REPO, there).missing_bytes == 0
    hub.log.clear()
    assert offer(REPO, there).bring(None) == theirs
    assert [request.path for request in hub.log] == [f"/api/models/{REPO}/revision/main"]


def test_repository_of_pickles_is_refused(hub: FakeHub, store: Store) -> None:
    del hub.files["model.safetensors"], hub.files["consolidated.safetensors"]
    with pytest.raises(BadModelFile, match="no safetensors") as caught:
        download(REPO, store)
    assert "--include" in caught.value.hint


# Interrupted (fault 20)


def test_an_interrupted_download_goes_on_where_it_was(hub: FakeHub, store: Store) -> None:
    def interrupt(label: str, done: int, total: int) -> None:
        if done > 400_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(REPO, store, progress=interrupt)
    (part,) = blobs(store).glob("*-part")
    done = part.stat().st_size
    assert 0 < done < len(WEIGHTS) and part.name.startswith(SHA256)
    assert WEIGHTS.startswith(part.read_bytes())
    assert not (blobs(store).parent / "snapshots").exists() and store.list() == []
    found = offer(REPO, store)
    assert found.size_bytes - done > found.missing_bytes >= len(WEIGHTS) - done
    assert (found.bring(None) / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.ranges("model.safetensors") == [None, f"bytes={done}-"]
    assert not list(blobs(store).glob("*-part"))


def test_a_killed_download_goes_on_where_it_was(hub: FakeHub, store: Store) -> None:
    hub.faults["model.safetensors"] = Fault(stall_after=600_000, times=1)
    child = multiprocessing.get_context("fork").Process(target=download, args=(REPO, store))
    child.start()
    deadline = time.monotonic() + 10
    part = blobs(store) / f"{SHA256}.swiftchat-part"
    while not (part.exists() and part.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.005)
    child.kill()
    child.join(10)
    assert (download(REPO, store) / "model.safetensors").read_bytes() == WEIGHTS
    first, second = hub.ranges("model.safetensors")
    assert first is None and second is not None and second.startswith("bytes=")


def test_a_broken_connection_is_taken_up_again(hub: FakeHub, store: Store) -> None:
    hub.faults["model.safetensors"] = Fault(cut_after=300_000, times=3)
    assert (download(REPO, store) / "model.safetensors").read_bytes() == WEIGHTS
    starts = [int(r.split("=")[1][:-1]) if r else 0 for r in hub.ranges("model.safetensors")]
    assert len(starts) == 4 and starts == sorted(set(starts))


def test_a_stalled_connection_is_taken_up_again(hub: FakeHub, store: Store) -> None:
    hub.faults["model.safetensors"] = Fault(stall_after=300_000, times=1)
    assert (download(REPO, store) / "model.safetensors").read_bytes() == WEIGHTS
    assert len(hub.ranges("model.safetensors")) == 2


def test_a_connection_that_always_breaks_ends(hub: FakeHub, store: Store) -> None:
    hub.faults["model.safetensors"] = Fault(cut_after=0)
    with pytest.raises(DownloadError, match=r"connection to 127\.0\.0\.1 broke"):
        download(REPO, store)
    assert len(hub.ranges("model.safetensors")) == 1
    hub.faults["model.safetensors"] = Fault(cut_after=131_072)
    hub.files["model.safetensors"] = random.Random(1).randbytes(4_000_000)
    with pytest.raises(DownloadError, match="broke"):
        download(REPO, store)
    assert len(hub.ranges("model.safetensors")) == 1 + 21


def test_a_server_without_ranges_begins_again(hub: FakeHub, store: Store) -> None:
    hub.faults["model.safetensors"] = Fault(cut_after=500_000, no_ranges=True, times=1)
    blobs(store).mkdir(parents=True)
    (blobs(store) / f"{SHA256}.swiftchat-part").write_bytes(b"x" * 700_000)
    with pytest.raises(DownloadError):
        download(REPO, store)
    hub.faults["model.safetensors"] = Fault(no_ranges=True)
    assert (download(REPO, store) / "model.safetensors").read_bytes() == WEIGHTS


def test_parts_that_nobody_wants_are_swept(hub: FakeHub, store: Store) -> None:
    blobs(store).mkdir(parents=True)
    old, long = (blobs(store) / f"{digest}.swiftchat-part" for digest in ("0" * 64, SHA256))
    theirs = blobs(store) / f"{'0' * 64}.incomplete"
    theirs.write_bytes(b"of the hub's library")
    old.write_bytes(b"x")
    long.write_bytes(bytes(len(WEIGHTS) + 1))
    download(REPO, store)
    assert not old.exists() and not long.exists() and theirs.exists()
    assert hub.ranges("model.safetensors") == [None]


@pytest.mark.usefixtures("hub")
def test_rm_removes_what_an_interrupted_download_left(store: Store) -> None:
    blobs(store).mkdir(parents=True)
    (blobs(store) / f"{SHA256}.swiftchat-part").write_bytes(bytes(700))
    assert store.list() == []
    assert store.remove("Owner/model").size_bytes == 700
    assert not blobs(store).parent.exists()
    with pytest.raises(ModelNotFound):
        store.remove(REPO)


# Wrong contents (fault 6)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_wrong_contents_are_set_aside(hub: FakeHub, store: Store, name: str) -> None:
    right = FILES[name]
    wrong = right[:-1] + bytes([right[-1] ^ 1])
    hub.faults[name] = Fault(sends=wrong)
    with pytest.raises(BadModelFile, match=f"{name}: its .* is not") as caught:
        download(REPO, store)
    assert caught.value.exit_code == 7
    (aside,) = blobs(store).glob("*.damaged")
    assert aside.read_bytes() == wrong and str(aside) in str(caught.value)
    assert not (blobs(store).parent / "snapshots").exists()
    del hub.faults[name]
    hub.log.clear()
    assert (download(REPO, store) / name).read_bytes() == right
    assert hub.ranges(name) == [None] and not list(blobs(store).glob("*.damaged"))


def test_more_than_was_listed_is_refused_and_not_kept_going(hub: FakeHub, store: Store) -> None:
    hub.faults["model.safetensors"] = Fault(sends=WEIGHTS + bytes(30_000_000))
    with pytest.raises(BadModelFile, match="longer than the hub lists"):
        download(REPO, store)
    assert sum(file.stat().st_size for file in blobs(store).iterdir()) < 2 * len(WEIGHTS)


def test_less_than_was_listed_is_refused(hub: FakeHub, store: Store) -> None:
    hub.faults["model.safetensors"] = Fault(sends=WEIGHTS[:1000])
    with pytest.raises(DownloadError, match="only the beginning"):
        download(REPO, store)


def test_what_was_damaged_on_the_disk_is_found_and_replaced(hub: FakeHub, store: Store) -> None:
    path = download(REPO, store)
    (blobs(store) / SHA256).write_bytes(b"x" * len(WEIGHTS))
    with pytest.raises(BadModelFile, match="SHA-256"):
        download(REPO, store)
    assert not (path / "model.safetensors").exists()
    hub.log.clear()
    assert (download(REPO, store) / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.ranges("tokenizer.json") == []


# A listing that lies (fault 30)


@pytest.mark.parametrize(
    "name", ["../evil.json", "/etc/evil.json", "a/../../b.json", "a\\b.json", "C:evil.json",
             "a//b.json", "./b.json", "", "nul\0.json", "esc\x1b[2J.json", 7, None]
)  # fmt: skip
def test_names_that_lead_outside_are_refused(hub: FakeHub, store: Store, name: object) -> None:
    hub.extra_siblings = [{"rfilename": name, "size": 1, "blobId": "0" * 40}]
    with pytest.raises(BadModelFile, match="outside its own folder"):
        download(REPO, store)
    assert not store.hub_folder().exists()


@pytest.mark.parametrize(
    ("sibling", "complaint"),
    [
        ({"blobId": "../../../../evil"}, "checksum of x.json"),
        ({"blobId": None}, "checksum of x.json"),
        ({"lfs": {"sha256": "../evil", "size": 1}}, "checksum of x.json"),
        ({"size": -1}, "size of x.json"),
        ({"size": 2**70}, "size of x.json"),
        ({"size": "1"}, "size of x.json"),
    ],
)
def test_numbers_that_cannot_be_are_refused(
    hub: FakeHub, store: Store, sibling: dict[str, Any], complaint: str
) -> None:
    right = {"rfilename": "x.json", "size": 1, "blobId": "0" * 40}
    hub.extra_siblings = [{**right, **sibling}]
    with pytest.raises(BadModelFile, match=complaint):
        download(REPO, store)
    assert not store.hub_folder().exists()


@pytest.mark.parametrize("commit", ["../../../evil", "", "c0ffee"])
def test_a_commit_that_is_none_is_refused(hub: FakeHub, store: Store, commit: str) -> None:
    hub.commit = commit
    with pytest.raises(BadModelFile, match="40 hexadecimal digits"):
        download(REPO, store)


@pytest.mark.parametrize("shard", ["../../evil.safetensors", "/etc/passwd", "gone.safetensors", 3])
def test_an_index_that_names_other_files_is_refused_before_the_weights(
    hub: FakeHub, store: Store, shard: object
) -> None:
    hub.files["model-1.safetensors"] = hub.files.pop("model.safetensors")
    index = {"weight_map": {"a": "model-1.safetensors", "b": shard}}
    hub.files["model.safetensors.index.json"] = json.dumps(index).encode()
    with pytest.raises(BadModelFile, match=r"tensor b: .* is no file of the model"):
        download(REPO, store)
    assert hub.ranges("model-1.safetensors") == []


def test_a_link_in_the_repository_stays_a_text(hub: FakeHub, store: Store) -> None:
    """Git keeps a symbolic link as a text with its target, and that is what the hub sends."""
    hub.files["generation_config.json"] = b"../../../../etc/passwd"
    path = download(REPO, store) / "generation_config.json"
    assert path.read_bytes() == b"../../../../etc/passwd"
    assert path.resolve().is_relative_to(store.hub_folder().resolve())
    assert not path.resolve().is_symlink()


@pytest.mark.parametrize(
    "said", [b"<html>", b"[]", b'{"sha": 1}', b"[" * 100_000, b'{"sha": "' + b"0" * 40 + b'"}']
)
def test_an_answer_that_is_no_hubs_is_told(hub: FakeHub, store: Store, said: bytes) -> None:
    hub.faults["api"] = Fault(sends=said)
    with pytest.raises(BadModelFile if said[:1] == b"{" or said == b"[]" else DownloadError):
        download(REPO, store)


# The disk (fault 12)


def test_a_full_disk_is_told_before_the_download(
    hub: FakeHub, store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub.extra_siblings = [
        {"rfilename": "a.json", "size": 7_000_000_000, "lfs": {"sha256": "0" * 64}}
    ]
    usage = shutil.disk_usage(tmp_path)._replace(free=2_500_000_000)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(FileSystemError, match=r"7\.00 GB needed, 2\.50 GB free"):
        download(REPO, store)
    assert hub.ranges("model.safetensors") == [] and names(blobs(store)) == []


def test_a_disk_that_fills_up_is_told_and_the_part_kept(hub: FakeHub, store: Store) -> None:
    def fetch(results: Any) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
        try:
            download(REPO, store)
        except FileSystemError as error:
            results.put(str(error))

    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=fetch, args=(results,))
    child.start()
    assert "GB needed" in results.get(timeout=20)
    child.join(20)
    assert (blobs(store) / f"{SHA256}.swiftchat-part").stat().st_size <= 500_000
    assert (download(REPO, store) / "model.safetensors").read_bytes() == WEIGHTS
    assert len(hub.ranges("model.safetensors")) == 2


@pytest.mark.usefixtures("hub")
def test_other_trouble_with_the_disk_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: HubCache, files: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(HubCache, "_sweep", fail)
    with pytest.raises(FileSystemError, match="cannot store owner/model: Read-only"):
        download(REPO, store)


# Two at once (fault 25)


def test_of_two_processes_one_works_and_one_waits(hub: FakeHub, store: Store) -> None:
    hub.faults["model.safetensors"] = Fault(delay_s=0.5)
    context = multiprocessing.get_context("fork")
    start, results = context.Barrier(2), context.Queue()

    def fetch() -> None:
        labels: list[str] = []
        start.wait(20)
        path = download(REPO, store, progress=lambda label, *_: labels.append(label))
        results.put((str(path), any("waiting for another process" in text for text in labels)))

    children = [context.Process(target=fetch) for _ in range(2)]
    for child in children:
        child.start()
    (one, one_waited), (two, two_waited) = (results.get(timeout=30) for _ in children)
    for child in children:
        child.join(20)
    assert one == two and one_waited != two_waited
    assert hub.ranges("model.safetensors") == [None]
    assert names(store.hub_folder() / ".locks") == []


# Each failure told apart (fault 40), and no token in any (fault 29)

REFUSALS: dict[str, tuple[str, Fault, type[SwiftchatError], str, str]] = {
    "401": ("api", Fault(status=401), DownloadError, "refuses the token", "HF_TOKEN"),
    "403": ("api", Fault(status=403), DownloadError, "forbids access", "token"),
    "gated": ("model.safetensors", Fault(status=403, headers={"X-Error-Code": "GatedRepo"}),
              DownloadError, "is gated", "accept its conditions"),
    "404": ("api", Fault(status=404), ModelNotFound, "no model owner/model", "name"),
    "no file": ("odd[1].json", Fault(status=404, headers={"X-Error-Code": "EntryNotFound"}),
                DownloadError, "does not have", ""),
    "revision": ("api", Fault(status=404, headers={"X-Error-Code": "RevisionNotFound"}),
                 ModelNotFound, "no revision 'main'", ""),
    "407": ("api", Fault(status=407), DownloadError, "proxy asks for a password", "PROXY"),
    "429": ("api", Fault(status=429), DownloadError, "HTTP 429", "later"),
    "429 seconds": ("api", Fault(status=429, headers={"Retry-After": "37"}), DownloadError,
                    "HTTP 429", "in 37 s"),
    "429 date": ("model.safetensors",
                 Fault(status=429, headers={"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
                 DownloadError, "HTTP 429", "in 0 s"),
    "500": ("api", Fault(status=500), DownloadError, "HTTP 500", "later"),
    "503": ("model.safetensors", Fault(status=503), DownloadError, "HTTP 503", "later"),
    "418": ("api", Fault(status=418), DownloadError, "HTTP 418", "later"),
    "silent": ("api", Fault(stall_after=0), DownloadError, "nothing for too long", "network"),
    "stalled": ("model.safetensors", Fault(stall_after=0), DownloadError,
                "nothing for too long", "network"),
    "cut off": ("api", Fault(cut_after=5), DownloadError, "broke", "network"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_failures_are_told_apart_without_the_token(hub: FakeHub, store: Store, name: str) -> None:
    where, fault, kind, complaint, hint = REFUSALS[name]
    hub.faults[where] = fault
    started = time.monotonic()
    with pytest.raises(kind, match=complaint) as caught:
        download(REPO, store, token=TOKEN)
    assert time.monotonic() - started < 5
    assert hint in caught.value.hint
    assert caught.value.exit_code == (3 if kind is ModelNotFound else 6)
    shown = "".join(traceback.format_exception(caught.value)) + caught.value.hint
    assert TOKEN not in shown and any(request.authorization for request in hub.log)


def test_a_missing_token_is_another_thing_than_a_wrong_one(hub: FakeHub, store: Store) -> None:
    hub.faults["api"] = Fault(status=401)
    with pytest.raises(DownloadError, match="private, or no such model"):
        download(REPO, store)


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("endpoint", "complaint"),
    [
        ("http://127.0.0.1:{port}", "refuses connections"),
        ("http://no.such.host.invalid", r"no address is known for no\.such\.host\.invalid"),
        ("nonsense", "cannot be asked"),
    ],
)
def test_a_hub_that_is_not_there(
    store: Store, monkeypatch: pytest.MonkeyPatch, endpoint: str, complaint: str
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", endpoint.format(port=closed_port()))
    with pytest.raises(DownloadError, match=complaint):
        download(REPO, store, token=TOKEN)


@pytest.mark.usefixtures("hub")
def test_a_hub_with_another_protocol(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", constants.ENDPOINT.replace("http:", "https:"))
    with pytest.raises(DownloadError, match="no trusted connection"):
        download(REPO, store)


@pytest.mark.usefixtures("hub")
def test_a_proxy_that_is_not_there_is_told_without_its_password(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://user:secret@127.0.0.1:{closed_port()}")
    monkeypatch.setattr(constants, "ENDPOINT", "http://hub.invalid")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises(DownloadError, match=r"proxy on the way to hub\.invalid failed") as caught:
        download(REPO, store)
    assert "secret" not in "".join(traceback.format_exception(caught.value)) + caught.value.hint


def test_the_token_goes_to_the_hub_alone(
    hub: FakeHub, store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password other\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    download(REPO, store, token=TOKEN)
    sent = {server: {r.authorization for r in hub.log if r.server == server}
            for server in ("hub", "storage")}  # fmt: skip
    assert sent["hub"] == {f"Bearer {TOKEN}"}
    assert not any(TOKEN in (header or "") for header in sent["storage"])
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(TOKEN.encode() in path.read_bytes() for path in kept)
    assert TOKEN not in repr(offer(REPO, store, token=TOKEN))


@pytest.mark.parametrize("token", [f"{TOKEN}\n", f"{TOKEN} x", "ö", ""])
def test_malformed_token_is_refused_unseen(hub: FakeHub, store: Store, token: str) -> None:
    with pytest.raises(DownloadError, match="no token has") as caught:
        download(REPO, store, token=token)
    assert TOKEN not in str(caught.value) and hub.log == []


def test_the_stored_token_is_used(
    hub: FakeHub, store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    offer(REPO, store)
    assert hub.log[-1].authorization == f"Bearer {TOKEN}"


def test_a_model_that_is_here_works_without_the_hub(
    hub: FakeHub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = download(REPO, store)
    hub.faults["api"] = Fault(status=503)
    assert store.resolve(REPO, offline=True) == path
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
def test_what_is_no_name_is_not_asked_for(hub: FakeHub, store: Store, name: str) -> None:
    with pytest.raises(ModelNotFound, match="no model name") as caught:
        download(name, store)
    assert "OWNER/NAME" in caught.value.hint and hub.log == []


def test_an_alias_is_its_repository(
    hub: FakeHub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repo = "Qwen/Qwen3-8B"
    found: Offer = offer("Qwen3:8B", store)
    assert found.repo == "Qwen/Qwen3-8B"
    assert found.bring(None) == store.resolve("qwen3:8b")


def test_the_owners_spelling_is_kept(hub: FakeHub, store: Store) -> None:
    path = download("Owner/MODEL", store, token=TOKEN)
    assert path.parts[-3] == "models--owner--model" and store.resolve("OWNER/model") == path
    assert hub.log[1].authorization == f"Bearer {TOKEN}"


def test_a_password_in_the_hubs_address_is_not_shown(
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


def test_an_unknown_alias_names_the_nearest(hub: FakeHub, store: Store) -> None:
    with pytest.raises(ModelNotFound) as caught:
        download("qwen3:9b", store)
    assert "qwen3:8b" in caught.value.hint and hub.log == []
    with pytest.raises(ModelNotFound) as caught:
        download("smolm2:135m", store)
    assert "smollm2:135m" in caught.value.hint
