"""download from a loopback hub: selected files, cache layout, interruptions, damage, full disk."""

import errno
import hashlib
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

from swiftchat.errors import (
    BadModelFile,
    DownloadError,
    FileSystemError,
    ModelNotFound,
)
from swiftchat.tokenizer.huggingface.files import MORE_TEMPLATES, NEIGHBORS, VOCABULARIES
from swiftchat.weights.download import download, plan_download
from swiftchat.weights.hub.blobs import Blobs
from swiftchat.weights.hub.listing import HubFile, Listing, select_files
from swiftchat.weights.store import Store
from tests.support.fake_hub import COMMIT, MODEL, WEIGHTS, FakeHub, Fault, in_use

REPO = "owner/model"
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()
DEFAULT = [
    "README.md",
    "additional_chat_templates/tools.jinja",
    "config.json",
    "model.safetensors",
    "odd[1].json",
    "tokenizer.json",
]


def test_all_files_of_tokenizers_are_downloaded() -> None:
    names = {*VOCABULARIES, *NEIGHBORS, "qwen.tiktoken", MORE_TEMPLATES + "tools.jinja"}
    files = {name: HubFile(name, 1, "0" * 40) for name in (*names, "model.safetensors", "x.gguf")}
    listing = Listing("owner/model", "main", "0" * 40, None, files)
    found = {file.name for file in select_files(listing, None, (), ())}
    assert found == {*names, "model.safetensors"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with in_use(FakeHub(dict(MODEL), REPO), monkeypatch) as hub:
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


# Selected files


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, DEFAULT),
        ({"include": ["*.gguf"]}, sorted([*DEFAULT, "model.gguf"])),
        (
            {"exclude": ["README*", "odd*", "add*"]},
            ["config.json", "model.safetensors", "tokenizer.json"],
        ),
        (
            {"include": ["onnx/*"], "exclude": ["*.json", "*.jinja"]},
            ["README.md", "model.safetensors", "onnx/model.onnx"],
        ),
    ],
)
def test_only_needed_files_are_downloaded(store: Store, options: Any, expected: list[str]) -> None:
    reports: list[tuple[str, int, int]] = []
    found = plan_download(REPO, store, **options)
    assert (found.repo, found.license) == (REPO, "apache-2.0")
    path = found.run(lambda *report: reports.append(report))
    assert path == store.hub_folder() / "models--owner--model" / "snapshots" / COMMIT
    assert names(path) == expected
    assert all((path / name).read_bytes() == MODEL[name] for name in expected)
    total = sum(len(MODEL[name]) for name in expected)
    assert found.size_bytes == found.missing_bytes == total
    assert reports[-1] == (f"downloading {REPO}", total, total)
    assert all(done <= total for _, done, _ in reports)


def test_only_the_indexed_copy_of_the_weights_is_downloaded(hub: FakeHub, store: Store) -> None:
    del hub.files["model.safetensors"]
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    weight_map = {f"layer.{i}": shard for i, shard in enumerate(shards)}
    hub.files |= {
        "model.safetensors.index.json": json.dumps({"weight_map": weight_map}).encode(),
        "model.fp32.safetensors": b"another copy",
        **dict.fromkeys(shards, WEIGHTS[:999]),
    }
    found = names(download(REPO, store))
    assert [name for name in found if name.endswith(".safetensors")] == shards


def test_without_an_index_the_second_copy_is_not_downloaded(hub: FakeHub, store: Store) -> None:
    hub.files["other.safetensors"] = hub.files.pop("model.safetensors")
    found = names(download(REPO, store))
    assert [name for name in found if name.endswith(".safetensors")] == ["other.safetensors"]


def download_with_huggingface_hub(cache: Path) -> Path:
    """Download with huggingface_hub, in a process: it reads the endpoint when it is imported."""
    script = (
        "import sys, huggingface_hub\n"
        "print(huggingface_hub.snapshot_download(sys.argv[1], cache_dir=sys.argv[2]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, REPO, str(cache)],
        capture_output=True,
        check=True,
        env={**os.environ, "HF_ENDPOINT": constants.ENDPOINT},
    )
    return Path(done.stdout.decode().strip())


def test_huggingface_hub_shares_the_cache(hub: FakeHub, store: Store, tmp_path: Path) -> None:
    ours = download(REPO, store)
    theirs = download_with_huggingface_hub(tmp_path / "theirs")
    for name in DEFAULT:
        assert (ours / name).readlink() == (theirs / name).readlink()
    main = Path("models--owner--model/refs/main")
    assert (store.hub_folder() / main).read_text() == (tmp_path / "theirs" / main).read_text()
    found = huggingface_hub.snapshot_download(
        REPO, cache_dir=store.hub_folder(), local_files_only=True, allow_patterns=["config.json"]
    )
    assert Path(found) == ours == store.resolve(REPO)
    there = Store(store.root, store.cache, tmp_path / "theirs")
    assert plan_download(REPO, there).missing_bytes == 0
    hub.log.clear()
    assert plan_download(REPO, there).run(None) == theirs
    assert [request.path for request in hub.log] == [f"/api/models/{REPO}/revision/main"]


def test_torch_files_are_downloaded_without_safetensors(
    hub: FakeHub, store: Store, tmp_path: Path
) -> None:
    del hub.files["model.safetensors"], hub.files["consolidated.safetensors"]
    found = names(download(REPO, store))
    assert [name for name in found if name.endswith(".bin")] == ["pytorch_model.bin"]
    content = hub.files.pop("pytorch_model.bin")
    shards = [f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2)]
    weight_map = {f"layer.{i}": shard for i, shard in enumerate(shards)}
    hub.files |= {
        "pytorch_model.bin.index.json": json.dumps({"weight_map": weight_map}).encode(),
        "training_args.bin": b"settings",
        **dict.fromkeys(shards, content),
    }
    other = Store(store.root, store.cache, tmp_path / "other")
    found = names(download(REPO, other))
    assert [name for name in found if name.endswith(".bin")] == shards
    weight_map["layer.2"] = "training_args.json"
    hub.files["pytorch_model.bin.index.json"] = json.dumps({"weight_map": weight_map}).encode()
    with pytest.raises(BadModelFile, match=r"the bin index: tensor layer.2: 'training_args.json"):
        download(REPO, store)


def test_a_repository_without_weights_raises_an_error(hub: FakeHub, store: Store) -> None:
    weights = ("model.safetensors", "consolidated.safetensors", "pytorch_model.bin", "model.gguf")
    for name in weights:
        del hub.files[name]
    with pytest.raises(BadModelFile, match=r"no safetensors and no pytorch_model.bin") as caught:
        download(REPO, store)
    assert "for example original/consolidated.00.pth" in caught.value.hint


# Interruptions


@pytest.mark.fault(20)
def test_an_interrupted_download_is_resumed(hub: FakeHub, store: Store) -> None:
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
    found = plan_download(REPO, store)
    assert found.size_bytes - done > found.missing_bytes >= len(WEIGHTS) - done
    assert (found.run(None) / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.ranges("model.safetensors") == [None, f"bytes={done}-"]
    assert not list(blobs(store).glob("*-part"))


def test_a_broken_connection_is_reopened(hub: FakeHub, store: Store) -> None:
    hub.faults["model.safetensors"] = Fault(cut_after=300_000, times=3)
    assert (download(REPO, store) / "model.safetensors").read_bytes() == WEIGHTS
    starts = [int(r.split("=")[1][:-1]) if r else 0 for r in hub.ranges("model.safetensors")]
    assert len(starts) == 4 and starts == sorted(set(starts))


@pytest.mark.fault(40)
def test_a_stalled_connection_is_reopened(hub: FakeHub, store: Store) -> None:
    hub.faults["model.safetensors"] = Fault(stall_after=300_000, times=1)
    assert (download(REPO, store) / "model.safetensors").read_bytes() == WEIGHTS
    assert len(hub.ranges("model.safetensors")) == 2


def test_a_connection_that_always_breaks_raises_an_error(hub: FakeHub, store: Store) -> None:
    hub.faults["model.safetensors"] = Fault(cut_after=0)
    with pytest.raises(DownloadError, match=r"connection to 127\.0\.0\.1 was lost"):
        download(REPO, store)
    assert len(hub.ranges("model.safetensors")) == 1
    hub.faults["model.safetensors"] = Fault(cut_after=131_072)
    hub.files["model.safetensors"] = random.Random(1).randbytes(4_000_000)
    with pytest.raises(DownloadError, match="was lost"):
        download(REPO, store)
    assert len(hub.ranges("model.safetensors")) == 1 + 21


def test_a_server_without_ranges_restarts_the_file(hub: FakeHub, store: Store) -> None:
    hub.faults["model.safetensors"] = Fault(cut_after=500_000, no_ranges=True, times=1)
    blobs(store).mkdir(parents=True)
    part = blobs(store) / f"{SHA256}.swiftchat-part"
    part.write_bytes(b"x" * 700_000)
    with pytest.raises(DownloadError, match="was lost"):
        download(REPO, store)
    assert part.stat().st_size <= 500_000 and WEIGHTS.startswith(part.read_bytes())
    hub.faults["model.safetensors"] = Fault(no_ranges=True)
    assert (download(REPO, store) / "model.safetensors").read_bytes() == WEIGHTS
    assert {request.encoding for request in hub.log if request.server == "storage"} == {"identity"}


def test_a_wrong_range_raises_an_error(hub: FakeHub, store: Store) -> None:
    blobs(store).mkdir(parents=True)
    (blobs(store) / f"{SHA256}.swiftchat-part").write_bytes(WEIGHTS[:700])
    hub.faults["model.safetensors"] = Fault(headers={"Content-Range": "bytes 5-9/10"})
    with pytest.raises(DownloadError, match=r"another range of model\.safetensors"):
        download(REPO, store)


@pytest.mark.usefixtures("hub")
def test_config_json_is_linked_last(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    linked: list[str] = []

    def fail(link: Path, target: str) -> None:
        linked.append(link.name)
        if len(linked) == len(DEFAULT):
            raise OSError(errno.EIO, "Input/output error")
        link.symlink_to(target)

    monkeypatch.setattr("swiftchat.weights.hub.cache._symlink", fail)
    with pytest.raises(FileSystemError, match="Input/output error"):
        download(REPO, store)
    assert linked[-1] == "config.json" and store.list() == []


def test_stale_partial_files_are_removed(hub: FakeHub, store: Store) -> None:
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
def test_rm_removes_an_interrupted_download(store: Store) -> None:
    blobs(store).mkdir(parents=True)
    (blobs(store) / f"{SHA256}.swiftchat-part").write_bytes(bytes(700))
    assert store.list() == []
    assert store.remove("Owner/model").size_bytes == 700
    assert not blobs(store).parent.exists()
    with pytest.raises(ModelNotFound):
        store.remove(REPO)


# Wrong content


def test_a_too_long_file_stops_the_download(hub: FakeHub, store: Store) -> None:
    hub.faults["model.safetensors"] = Fault(sends=WEIGHTS + bytes(30_000_000))
    with pytest.raises(BadModelFile, match="longer than the hub lists"):
        download(REPO, store)
    assert sum(file.stat().st_size for file in blobs(store).iterdir()) < 2 * len(WEIGHTS)


def test_a_too_short_file_raises_an_error(hub: FakeHub, store: Store) -> None:
    hub.faults["model.safetensors"] = Fault(sends=WEIGHTS[:1000])
    with pytest.raises(DownloadError, match="has only part"):
        download(REPO, store)


@pytest.mark.fault(6)
@pytest.mark.parametrize(
    ("name", "digest"), [("model.safetensors", "SHA-256"), ("tokenizer.json", "git")]
)
def test_wrong_content_is_renamed(hub: FakeHub, store: Store, name: str, digest: str) -> None:
    right = MODEL[name]
    wrong = right[:-1] + bytes([right[-1] ^ 1])
    hub.faults[name] = Fault(sends=wrong)
    with pytest.raises(BadModelFile, match=f"{re.escape(name)}: its {digest}") as caught:
        download(REPO, store)
    (aside,) = blobs(store).glob("*.damaged")
    assert aside.read_bytes() == wrong and str(aside) in caught.value.message
    assert caught.value.exit_code == 7 and not (blobs(store).parent / "snapshots").exists()
    del hub.faults[name]
    hub.log.clear()
    assert (download(REPO, store) / name).read_bytes() == right
    assert hub.ranges(name) == [None] and not list(blobs(store).glob("*.damaged"))


@pytest.mark.fault(6)
def test_a_damaged_file_in_the_cache_is_replaced(hub: FakeHub, store: Store) -> None:
    path = download(REPO, store)
    (blobs(store) / SHA256).write_bytes(b"x" * len(WEIGHTS))
    with pytest.raises(BadModelFile, match="SHA-256"):
        download(REPO, store)
    assert not (path / "model.safetensors").exists()
    hub.log.clear()
    assert (download(REPO, store) / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.ranges("tokenizer.json") == []


# Disk


@pytest.mark.fault(12)
def test_a_full_disk_is_reported_before_the_download(
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


@pytest.mark.fault(12)
def test_a_disk_that_fills_up_keeps_the_partial_file(hub: FakeHub, store: Store) -> None:
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
    assert "1.00 MB needed" not in (message := results.get(timeout=60)) and "MB needed" in message
    child.join(60)
    assert (blobs(store) / f"{SHA256}.swiftchat-part").stat().st_size <= 500_000
    assert (download(REPO, store) / "model.safetensors").read_bytes() == WEIGHTS
    assert len(hub.ranges("model.safetensors")) == 2


@pytest.mark.usefixtures("hub")
def test_other_disk_errors_are_reported(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Blobs, files: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Blobs, "remove_stale_parts", fail)
    with pytest.raises(FileSystemError, match="cannot store owner/model: Read-only"):
        download(REPO, store)


# Two processes


@pytest.mark.fault(25)
def test_of_two_downloads_one_works_and_one_waits(hub: FakeHub, store: Store) -> None:
    """Threads stand for processes: the lock is one of files."""
    arrived, go, waits = threading.Event(), threading.Event(), threading.Event()
    hub.faults["model.safetensors"] = Fault(arrived=arrived, waits_for=go)

    def progress(label: str, done: int, total: int) -> None:
        if label.startswith("waiting for another process"):
            waits.set()

    with ThreadPoolExecutor(2) as pool:
        try:
            first = pool.submit(download, REPO, store)
            assert arrived.wait(60)
            second = pool.submit(download, REPO, store, progress=progress)
            assert waits.wait(60) and not first.done()
        finally:
            go.set()
        assert first.result(60) == second.result(60)
    assert (first.result() / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.ranges("model.safetensors") == [None]
    assert not list((store.hub_folder() / ".locks").rglob("*.lock"))
