"""Models that are quantized while they are downloaded from a loopback hub."""

import json
import resource
import shutil
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swiftchat.errors import (
    BadModelFile,
    DownloadError,
    FileSystemError,
    ModelNotFound,
    UsageError,
)
from swiftchat.weights import arrival
from swiftchat.weights.convert import conversion
from swiftchat.weights.download import download, plan_download
from swiftchat.weights.files.lock import exclusive_lock
from swiftchat.weights.formats.safetensors import create_safetensors
from swiftchat.weights.store import Store
from tests.support.arriving_models import content_of, converted, repository_files
from tests.support.fake_hub import FakeHub, Fault, in_use
from tests.support.tiny_llama import entry_names, tiny_llama

REPO = "owner/model"
_SHARDS = ["model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A model in three weight files."""
    return repository_files(tmp_path_factory.mktemp("model"), tiny_llama())


@pytest.fixture
def hub(files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    # The files are small: with ends of a megabyte there would be no hole.
    for module in (arrival, conversion):
        monkeypatch.setattr(module, "SAMPLE_BYTES", 1000)
    with in_use(FakeHub(dict(files), REPO), monkeypatch) as hub:
        yield hub


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models", tmp_path / "cache", tmp_path / "hub")


class Stopped(Exception):
    """Raised from a callback: the run ends as with Ctrl-C."""


def stop_at(label: str, call: int) -> Any:
    """Return a progress callback that raises at the call of this number with such a label."""
    calls = iter(range(1_000_000))

    def progress(shown: str, done: int, total: int) -> None:
        if shown.startswith(label) and next(calls) == call:
            raise Stopped

    return progress


# The result


@pytest.mark.parametrize("form", ["4bit", "8bit"])
def test_the_result_is_that_of_convert(
    hub: FakeHub, store: Store, tmp_path: Path, form: str
) -> None:
    plan = plan_download(f"{REPO}:{form}", store)
    expected = converted(hub.files, tmp_path / "expected", form)
    path = plan.run(None)
    assert path == store.root / "owner" / f"model:{form}"
    assert content_of(path) == expected
    manifest_bytes = len(expected["swiftchat.json"])
    assert plan.size_bytes == sum(map(len, expected.values())) - manifest_bytes
    weights = sum(len(hub.files[name]) for name in hub.files if name.endswith(".safetensors"))
    assert plan.source_bytes == weights
    small = sum(len(hub.files[name]) for name in hub.files if not name.endswith(".safetensors"))
    assert plan.missing_bytes == weights + small
    assert entry_names(path.parent) == [f"model:{form}"]
    assert not (store.hub_folder() / "models--owner--model").exists()


@pytest.mark.parametrize(
    ("changes", "shard_size"),
    [({}, "1GB"), ({"tie_word_embeddings": True}, "60KB"), ({"tie_word_embeddings": True}, "1GB")],
)
def test_one_file_and_tied_embeddings(
    hub: FakeHub, store: Store, tmp_path: Path, changes: dict[str, Any], shard_size: str
) -> None:
    hub.files = repository_files(tmp_path / "model", tiny_llama(**changes), shard_size)
    path = download(f"{REPO}:4bit", store)
    assert content_of(path) == converted(hub.files, tmp_path / "expected", "4bit")


def test_a_weight_file_that_the_model_does_not_use_stays_on_the_hub(
    hub: FakeHub, store: Store, tmp_path: Path
) -> None:
    """As those of a vision tower."""
    extra = "model-extra.safetensors"
    specs = [("vision.weight", "F32", (100, 100))]
    with create_safetensors(tmp_path / extra, specs, {"format": "pt"}) as writer:
        writer.write("vision.weight", np.ones((100, 100), np.float32))
    index = json.loads(hub.files["model.safetensors.index.json"])
    index["weight_map"]["vision.weight"] = extra
    hub.files["model.safetensors.index.json"] = json.dumps(index).encode()
    hub.files[extra] = (tmp_path / extra).read_bytes()
    plan = plan_download(f"{REPO}:4bit", store)
    weights = [len(hub.files[name]) for name in hub.files if name.endswith(".safetensors")]
    assert plan.source_bytes == sum(weights) - len(hub.files[extra])
    path = plan.run(None)
    assert content_of(path) == converted(hub.files, tmp_path / "expected", "4bit")
    assert len(hub.ranges(extra)) == 3  # the header, and both ends


@pytest.mark.parametrize("is_copy", [True, False])
def test_an_output_matrix_beside_tied_embeddings(
    hub: FakeHub, store: Store, tmp_path: Path, is_copy: bool
) -> None:
    """Whether it is a copy of the embeddings decides whether the result has it."""
    model = tiny_llama()
    if is_copy:
        model.lm_head.weight.data.copy_(model.model.embed_tokens.weight.data)
    hub.files = repository_files(tmp_path / "model", model)
    config = json.loads(hub.files["config.json"])
    hub.files["config.json"] = json.dumps({**config, "tie_word_embeddings": True}).encode()
    path = download(f"{REPO}:4bit", store)
    found = content_of(path)
    assert found == converted(hub.files, tmp_path / "expected", "4bit")
    assert (b"lm_head.weight" in found["model.safetensors"]) == (not is_copy)


def test_at_most_one_weight_file_is_on_the_disk(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_llama(hidden_size=512, intermediate_size=2048, num_hidden_layers=6)
    files = repository_files(tmp_path / "model", model, "17MB")
    sizes = [len(content) for name, content in files.items() if name.endswith(".safetensors")]
    assert len(sizes) > 2
    used = [0]

    def progress(label: str, done: int, total: int) -> None:
        blocks = (file.lstat().st_blocks for file in store.root.rglob("*") if file.is_file())
        used.append(512 * sum(blocks))

    with in_use(FakeHub(files, REPO), monkeypatch):
        plan = plan_download(f"{REPO}:4bit", store)
        plan.run(progress)
    ends_bytes = 2 * conversion.SAMPLE_BYTES * len(sizes)
    assert max(sizes) < max(used) < max(sizes) + plan.size_bytes + ends_bytes + 1_000_000
    assert max(used) < sum(sizes)


def test_one_bar_that_never_goes_back(hub: FakeHub, store: Store) -> None:
    reports: list[tuple[str, int, int]] = []
    plan = plan_download(f"{REPO}:4bit", store)
    plan.run(lambda *report: reports.append(report))
    shown = [report for report in reports if report[0] != "checking"]
    assert {label for label, _, _ in shown} == {f"quantizing {REPO}:4bit as it arrives"}
    assert {total for _, _, total in shown} == {plan.source_bytes}
    done = [done for _, done, _ in shown]
    assert done == sorted(done) and done[-1] == plan.source_bytes


def test_files_that_are_stored_are_not_downloaded(
    hub: FakeHub, store: Store, tmp_path: Path
) -> None:
    snapshot = download(REPO, store)
    before = len(hub.log)
    plan = plan_download(f"{REPO}:4bit", store)
    assert plan.missing_bytes == 0 < plan.source_bytes
    path = plan.run(None)
    assert content_of(path) == converted(hub.files, tmp_path / "expected", "4bit")
    whole = {f"/{name}" for name in hub.files}
    fetched = [entry.path for entry in hub.log[before:] if entry.server == "storage"]
    assert set(fetched) <= whole and len(fetched) == 9  # a header, and both ends, of three files
    assert content_of(snapshot) == hub.files


# The name


def test_the_name_that_was_typed(hub: FakeHub, store: Store) -> None:
    path = download(f"{REPO}:8BIT", store)
    for name in (f"{REPO}:8bit", f"{REPO}:8BIT", REPO, "model:8bit", "model"):
        assert store.find(name) == path
    (model,) = store.list()
    assert (model.name, model.type, model.source) == (f"{REPO}:8bit", "8bit", "local")
    assert store.names() == [f"{REPO}:8bit"] and store.has(f"{REPO}:8bit")
    assert not store.has(f"{REPO}:4bit")
    plan = plan_download(f"{REPO}:8bit", store)
    assert (plan.missing_bytes, plan.source_bytes) == (0, 0) and plan.run(None) == path
    # Beside the model as it was published, the name without a form is that one's.
    snapshot = download(REPO, store)
    assert store.find(REPO) == snapshot and store.find(f"{REPO}:8bit") == path
    store.remove(f"{REPO}:8bit")
    assert [model.name for model in store.list()] == [REPO]


def test_files_that_are_published_are_preferred(hub: FakeHub, store: Store) -> None:
    hub.files["model-Q4_K_M.gguf"] = b"GGUF"
    plan = plan_download(f"{REPO}:4bit", store)
    assert plan.repo == f"{REPO}:Q4_K_M"
    path = plan.run(None)
    assert store.find(f"{REPO}:4bit") == path and path.name == "model-Q4_K_M.gguf"
    assert plan_download(f"{REPO}:8bit", store).repo == f"{REPO}:8bit"


# Interruptions


@pytest.mark.fault(20)
def test_an_interrupted_run_goes_on(hub: FakeHub, store: Store, tmp_path: Path) -> None:
    """At every tenth report: nothing that is complete is downloaded or quantized again."""
    expected = converted(hub.files, tmp_path / "expected", "4bit")
    num_reports = 0

    def count(*report: object) -> None:
        nonlocal num_reports
        num_reports += 1

    download(f"{REPO}:4bit", store, progress=count)
    assert num_reports > 50
    for call in range(0, num_reports, 10):
        store.remove(f"{REPO}:4bit")
        with pytest.raises(Stopped):
            download(f"{REPO}:4bit", store, progress=stop_at("", call))
        assert store.list() == []
        arrived = {file.name for file in store.root.rglob("blobs/*")}
        before = len(hub.log)
        assert content_of(download(f"{REPO}:4bit", store)) == expected
        requests = [entry for entry in hub.log[before:] if entry.server == "storage"]
        # Three headers for the plan, then at most the files that have not arrived.
        assert len(requests) <= (12 if call == 0 else 6) and (call == 0 or arrived)
        assert entry_names(store.root / "owner") == ["model:4bit"]


@pytest.mark.fault(20)
def test_what_is_written_is_not_downloaded_again(hub: FakeHub, store: Store) -> None:
    plan = plan_download(f"{REPO}:4bit", store)
    with pytest.raises(Stopped):
        plan.run(stop_at("checking", 0))
    again = plan_download(f"{REPO}:4bit", store)
    assert again.missing_bytes == 0 and not again.starts_again
    before = len(hub.log)
    again.run(None)
    assert [entry for entry in hub.log[before:] if entry.server == "storage"] == []


@pytest.mark.parametrize("damage", ["result", "journal"])
def test_what_a_crash_has_damaged_is_made_again(
    hub: FakeHub, store: Store, tmp_path: Path, damage: str
) -> None:
    with pytest.raises(Stopped):
        download(f"{REPO}:4bit", store, progress=stop_at("checking", 0))
    work = store.unfinished(f"{REPO}:4bit")
    damaged = work / "journal" if damage == "journal" else work / "result" / "model.safetensors"
    content = damaged.read_bytes()
    half = len(content) // 2
    damaged.write_bytes(content[:half] + (b"" if damage == "journal" else bytes(half)))
    path = download(f"{REPO}:4bit", store)
    assert content_of(path) == converted(hub.files, tmp_path / "expected", "4bit")


def test_another_revision_starts_again(hub: FakeHub, store: Store, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        download(f"{REPO}:4bit", store, progress=stop_at("quantizing", 20))
    # Another page of the model is no other model.
    hub.commit, hub.files["README.md"] = "1" * 40, b"# New"
    assert not plan_download(f"{REPO}:4bit", store).starts_again
    model = tiny_llama()
    model.model.norm.weight.data += 1
    hub.commit, hub.files = "2" * 40, repository_files(tmp_path / "model", model)
    plan = plan_download(f"{REPO}:4bit", store)
    assert plan.starts_again
    assert content_of(plan.run(None)) == converted(hub.files, tmp_path / "expected", "4bit")


def test_an_interrupted_run_can_be_removed(hub: FakeHub, store: Store) -> None:
    with pytest.raises(Stopped):
        download(f"{REPO}:4bit", store, progress=stop_at("quantizing", 20))
    with pytest.raises(ModelNotFound):
        store.find(f"{REPO}:4bit")
    assert store.removable(f"{REPO}:4bit").size_bytes > 0
    store.remove(f"{REPO}:4bit")
    assert entry_names(store.root / "owner") == []


@pytest.mark.fault(40)
def test_a_network_that_is_lost_in_the_middle(hub: FakeHub, store: Store, tmp_path: Path) -> None:
    expected = converted(hub.files, tmp_path / "expected", "4bit")
    fault = Fault(cut_after=30_000)

    def lose(label: str, done: int, total: int) -> None:
        hub.faults[_SHARDS[1]] = fault

    def is_lost(progress: Any) -> bool:
        with pytest.raises(DownloadError, match=r"connection .* was lost") as caught:
            plan.run(progress)
        return caught.value.exit_code == 6

    plan = plan_download(f"{REPO}:4bit", store)
    assert is_lost(lose)  # in a weight file
    assert is_lost(None)  # again, with the other files complete
    hub.faults.clear()
    assert content_of(plan.run(None)) == expected
    store.remove(f"{REPO}:4bit")
    lose("", 0, 0)
    assert is_lost(None)  # at the header
    with pytest.raises(DownloadError):
        plan_download(f"{REPO}:4bit", store)
    hub.faults.clear()
    assert content_of(download(f"{REPO}:4bit", store)) == expected


@pytest.mark.fault(6)
def test_wrong_content_is_not_used(hub: FakeHub, store: Store, tmp_path: Path) -> None:
    """The ends are right and the middle is not: the digest tells."""
    plan = plan_download(f"{REPO}:4bit", store)
    content = bytearray(hub.files[_SHARDS[0]])
    content[len(content) // 2] ^= 1
    hub.faults[_SHARDS[0]] = Fault(sends=bytes(content))
    with pytest.raises(BadModelFile, match="its SHA-256 is not"):
        plan.run(None)
    hub.faults.clear()
    path = download(f"{REPO}:4bit", store)
    assert content_of(path) == converted(hub.files, tmp_path / "expected", "4bit")


@pytest.mark.fault(12)
def test_too_little_space_is_reported_before_writing(
    hub: FakeHub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_download(f"{REPO}:4bit", store)
    usage = type(shutil.disk_usage("/"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 9, plan.needed_bytes - 1))
    with pytest.raises(FileSystemError, match="not enough disk space") as caught:
        plan.run(None)
    assert caught.value.exit_code == 8
    assert not list(store.root.rglob("result/*"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 9, plan.needed_bytes))
    plan.run(None)


@pytest.mark.fault(12)
def test_a_disk_that_fills_up(hub: FakeHub, store: Store, tmp_path: Path) -> None:
    plan = plan_download(f"{REPO}:8bit", store)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, limits[1]))
    try:
        with pytest.raises(FileSystemError, match="not enough disk space"):
            plan.run(None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert store.list() == []
    path = download(f"{REPO}:8bit", store)
    assert content_of(path) == converted(hub.files, tmp_path / "expected", "8bit")


@pytest.mark.fault(25)
def test_a_second_process_waits(hub: FakeHub, store: Store) -> None:
    """Threads stand for processes: the lock is one of files."""
    plan, waits = plan_download(f"{REPO}:4bit", store), threading.Event()

    def progress(label: str, done: int, total: int) -> None:
        if label == "waiting for another process":
            waits.set()

    place = store.place(f"{REPO}:4bit")
    place.parent.mkdir(parents=True)
    with ThreadPoolExecutor(1) as pool:
        with exclusive_lock(place):
            waiting = pool.submit(plan.run, progress)
            assert waits.wait(60) and not store.unfinished(f"{REPO}:4bit").exists()
        assert waiting.result(60) == place
    before = len(hub.log)
    assert plan.run(None) == place and len(hub.log) == before


# What is refused


def test_what_cannot_be_quantized(hub: FakeHub, store: Store) -> None:
    def refused(expected: type[Exception], message: str, **options: Any) -> str:
        with pytest.raises(expected, match=message) as caught:
            plan_download(f"{REPO}:4bit", store, **options)
        return str(getattr(caught.value, "hint", ""))

    whole = dict(hub.files)
    assert f"swiftchat download {REPO}" in refused(UsageError, "no choice", include=["*.gguf"])
    config = {**json.loads(whole["config.json"]), "quantization_config": {"quant_method": "gptq"}}
    hub.files["config.json"] = json.dumps(config).encode()
    hint = refused(BadModelFile, r"it is quantized already \(gptq\)")
    assert hint == f"it runs as it is: swiftchat download {REPO}"
    config = {**json.loads(whole["config.json"]), "vocab_size": 9}
    hub.files["config.json"] = json.dumps(config).encode()
    refused(BadModelFile, rf"^{REPO}/{_SHARDS[0]}: tensor model.embed_tokens.weight: expected")
    hub.files = {name: content for name, content in whole.items() if name != "config.json"}
    refused(BadModelFile, "has no config.json")
    hub.files = {name: content for name, content in whole.items() if "safetensors" not in name}
    hub.files["pytorch_model.bin"] = b"pickle"
    hint = refused(BadModelFile, r"its weights are pickled files \(.bin\)")
    assert hint.startswith(f"swiftchat download {REPO}, then swiftchat convert --quantize int4")
    hub.files = {n: content for n, content in whole.items() if not n.endswith("index.json")}
    refused(BadModelFile, "neither model.safetensors nor model.safetensors.index.json")
    hub.files = {**whole, "model.safetensors": struct.pack("<Q", 1 << 40)}
    refused(BadModelFile, "is no safetensors file")
    hub.files = {"config.json": b"{}", "model-BF16.gguf": b"GGUF"}
    assert "it has BF16" in refused(ModelNotFound, "no GGUF model of type 4bit")
    hub.files = whole
    hub.faults["api"] = Fault(status=403, headers={"X-Error-Code": "GatedRepo"})
    assert "accept its conditions" in refused(DownloadError, "is gated")
    assert not store.root.exists()


def test_a_renamed_repository(hub: FakeHub, store: Store) -> None:
    hub.former_repo = "owner/former"
    path = download("owner/former:4bit", store)
    assert store.find("owner/former:4bit") == path


def test_an_installed_model_has_no_other_revision(hub: FakeHub, store: Store) -> None:
    download(f"{REPO}:4bit", store)
    with pytest.raises(UsageError, match="is installed already"):
        plan_download(f"{REPO}:4bit", store, revision=hub.commit)
    hub.faults["api"] = Fault(status=503)
    with pytest.raises(DownloadError) as caught:
        plan_download(f"{REPO}:4bit", store)
    assert f"the local copy still works: swiftchat -m {REPO}:4bit" in caught.value.hint
