"""Stored models, and those in huggingface_hub's cache: directories and GGUF files."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from swiftchat.errors import FileSystemError, SwiftchatError
from swiftchat.weights.files.reading import read_json
from swiftchat.weights.formats.weight_files import TORCH_FILES
from swiftchat.weights.hub.names import gguf_models, image_parts


@dataclass(frozen=True)
class StoredModel:
    """A stored model; `source` is "local", "hub" or "cache".

    `modified` and `used` are in seconds since 1970: the last change of a file, and the last time
    that the largest one was read, as far as the file system keeps that.

    "cache" are files made from a model (`derived`); `origin` is its GGUF file, which may be gone.
    A GGUF model of the hub has the name OWNER/NAME:TYPE, its `files`, and the first as `path`.
    `image_parts` are the vision parts beside them, which all types of the repository have in
    common; `size_bytes` counts them.
    """

    name: str
    path: Path
    size_bytes: int
    modified: float
    source: str
    origin: Path | None = None
    files: tuple[Path, ...] = ()
    image_parts: tuple[Path, ...] = ()
    used: float = 0.0

    @property
    def repo(self) -> str:
        """The name without the type of GGUF files."""
        return self.name.partition(":")[0]

    @property
    def gguf_type(self) -> str:
        """The type of GGUF files in the name; empty for other models."""
        return self.name.partition(":")[2]

    @property
    def type(self) -> str:
        """The type of the weights, such as Q4_K_M, BF16 or GPTQ; empty if it is not known."""
        return self.gguf_type or _directory_type(self.path)


def hub_name(path: Path) -> str | None:
    """Return the name of the model at a path in the hub cache; None for another path.

    The directories there are named by commits.
    """
    folder = next((each for each in path.parents if each.name == "snapshots"), None)
    if folder is None or not folder.parent.name.startswith("models--"):
        return None
    repo = folder.parent.name.removeprefix("models--").replace("--", "/")
    if path.parent == folder:
        return repo
    models = gguf_files(folder / path.relative_to(folder).parts[0])
    return next((gguf_name(repo, kind) for kind, files in models.items() if path in files), None)


def name_at(path: Path) -> str:
    """Return the name of the model at a path: that of its repository, or the last part."""
    return hub_name(path) or path.name


def models_of(name: str, folder: Path) -> Iterator[StoredModel]:
    """Yield the models of a repository in the hub cache: its GGUF files by type, and others.

    They are of huggingface_hub's revision, else of the newest complete one.
    """
    revisions = folders(folder / "snapshots")
    found = {revision: gguf_files(revision) for revision in revisions}
    complete = [
        revision
        for revision in revisions
        if (revision / "config.json").is_file() and has_weights(revision)
    ]
    if not complete and not any(found.values()):
        return
    main = _main_snapshot(name, folder.parent)
    if complete:
        models = [stored_directory(name, revision, "hub") for revision in complete]
        newest = max(models, key=lambda model: model.modified)
        yield next((model for model in models if model.path == main), newest)
    by_type = dict[str, list[Path]]()
    for revision in sorted(revisions, key=lambda each: each == main):
        by_type |= found[revision]
    for kind, files in by_type.items():
        yield _stored_files(gguf_name(name, kind), files, _image_parts(revisions))


def _image_parts(revisions: Iterable[Path]) -> tuple[Path, ...]:
    """Return the vision parts of GGUF models in the snapshots of a repository."""
    found = (file for revision in revisions for file in _gguf_in(revision))
    return tuple(map(Path, image_parts(map(str, found))))


def _stored_files(name: str, files: list[Path], parts: tuple[Path, ...]) -> StoredModel:
    states = [file.stat() for file in files]
    return StoredModel(
        name,
        files[0],
        sum(state.st_size for state in states) + _distinct_bytes(parts),
        max(state.st_mtime for state in states),
        "hub",
        files=tuple(files),
        image_parts=parts,
        used=_last_read(states),
    )


def disk_bytes(models: Iterable[StoredModel]) -> int:
    """Return the bytes of models on the disk: a vision part of several counts once."""
    own_bytes, parts = 0, set[Path]()
    for model in models:
        own_bytes += model.size_bytes - _distinct_bytes(model.image_parts)
        parts.update(model.image_parts)
    return own_bytes + _distinct_bytes(parts)


def _distinct_bytes(files: Iterable[Path]) -> int:
    return sum(blob.stat().st_size for blob in {file.resolve() for file in files})


def _main_snapshot(repo_id: str, hub_cache: Path | None) -> Path | None:
    """Return the snapshot that huggingface_hub would use, without network access."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        # Only config.json: other patterns fail for files that were excluded from the download.
        found = snapshot_download(
            repo_id, cache_dir=hub_cache, local_files_only=True, allow_patterns=["config.json"]
        )
    except (LocalEntryNotFoundError, HFValidationError):
        return None
    return Path(found)


def remove(model: StoredModel, hub_cache: Path | None, others: Sequence[StoredModel]) -> None:
    """Delete a model in the hub cache; without `others` of its repository, all files of that.

    Raises OSError.
    """
    if others:
        _remove_own_files(model, others)
    else:
        _remove_repository(model, hub_cache)


def _remove_repository(model: StoredModel, hub_cache: Path | None) -> None:
    from huggingface_hub import scan_cache_dir

    cache = scan_cache_dir(hub_cache)
    for repo in cache.repos:
        if repo.repo_id == model.repo and repo.repo_type == "model":
            hashes = [revision.commit_hash for revision in repo.revisions]
            cache.delete_revisions(*hashes).execute()


def _remove_own_files(model: StoredModel, others: Sequence[StoredModel]) -> None:
    """Delete the files of a model that `others` of its repository in the hub cache do not use.

    What another revision has under these names goes too; content that other names have stays.
    """
    folder = next(each for each in model.path.parents if each.name == "snapshots")
    links = [each for each in folder.rglob("*") if not each.is_dir()]
    places = {each: each.relative_to(folder).parts[1:] for each in links}
    used = {places[file] for other in others for file in other.image_parts}
    wanted = {places[file] for file in (*model.files, *model.image_parts)} - used
    own = {
        each for each, place in places.items() if (place in wanted if wanted else not is_gguf(each))
    }
    kept = {each.resolve() for each in links if each not in own}
    for each in own:
        blob = each.resolve()
        each.unlink()
        if blob not in kept:
            blob.unlink(missing_ok=True)


def stored_directory(name: str, path: Path, source: str) -> StoredModel:
    """Return the model in the directory `path`, which has files."""
    # GGUF files are models of their own.
    found = [file for file in path.iterdir() if file.is_file() and not is_gguf(file)]
    files = [file.stat() for file in found]
    size_bytes, modified = sum(file.st_size for file in files), max(file.st_mtime for file in files)
    return StoredModel(name, path, size_bytes, modified, source, used=_last_read(files))


def _last_read(files: list[os.stat_result]) -> float:
    # Of the weights: a list of the models reads the small files.
    return max(files, key=lambda file: file.st_size).st_atime


def _directory_type(path: Path) -> str:
    """Return the type of the weights in a model directory, by its GGUF file or config.json."""
    if found := next(iter(gguf_files(path)), ""):
        return found
    try:
        config = read_json(path / "config.json")
    except SwiftchatError:  # `show` tells what is wrong
        return ""
    quantization = config.get("quantization_config")
    if isinstance(quantization, dict):
        return str(quantization.get("quant_method") or "").upper()
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "")
    return dtype.replace("bfloat", "BF").replace("float", "F").upper()


def gguf_files(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each GGUF model in a folder, or one level below it, by type."""
    names = [file.relative_to(folder).as_posix() for file in _gguf_in(folder)]
    return {kind: [folder / name for name in files] for kind, files in gguf_models(names).items()}


def _gguf_in(folder: Path) -> list[Path]:
    found = [*folder.glob("*.[gG][gG][uU][fF]"), *folder.glob("*/*.[gG][gG][uU][fF]")]
    return [file for file in found if file.is_file()]


def gguf_name(repo: str, kind: str) -> str:
    """Return the name of a GGUF model of this type, "" for the only one without."""
    return f"{repo}:{kind}" if kind else repo


def has_weights(folder: Path) -> bool:
    """Return whether a directory has weight files that the engine reads or converts."""
    return any(map(any, map(folder.glob, ("*.safetensors", TORCH_FILES))))


def is_gguf(path: Path) -> bool:
    """Return whether `path` names a GGUF file, which may be missing."""
    # The model directory of a GGUF file has the name of the file.
    return path.suffix.lower() == ".gguf" and not path.is_dir()


def folders(path: Path) -> list[Path]:
    """Return the visible folders in `path`, sorted; none if it is no folder."""
    try:
        return sorted(
            entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith(".")
        )
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise FileSystemError.reading(path, error) from error
