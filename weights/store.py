"""The models stored on this machine, found by name."""

import builtins
import contextlib
import dataclasses
import os
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from swiftchat.errors import BadModelFile, FileSystemError, ModelNotFound
from swiftchat.weights.derived import (
    DerivedFiles,
    conversion_path,
    derived_files,
    gguf_directory,
    snapshot_conversion,
)
from swiftchat.weights.files.disk import Progress
from swiftchat.weights.files.paths import user_path
from swiftchat.weights.formats.weight_files import TORCH_FILES
from swiftchat.weights.hub.aliases import known_names, nearest, repository_of
from swiftchat.weights.hub.names import HubName, gguf_models

__all__ = ["Store", "StoredModel", "default_store"]

_LIST_HINT = "swiftchat list shows the installed models"


@dataclass(frozen=True)
class StoredModel:
    """A stored model; `modified` in seconds since 1970, `source` "local", "hub" or "cache".

    "cache" are files made from a model (`derived`); `origin` is its GGUF file, which may be gone.
    A GGUF model of the hub has the name OWNER/NAME:TYPE, its `files`, and the first as `path`.
    """

    name: str
    path: Path
    size_bytes: int
    modified: float
    source: str
    origin: Path | None = None
    files: tuple[Path, ...] = ()

    @property
    def repo(self) -> str:
        """The name without the type of GGUF files."""
        return self.name.partition(":")[0]


@dataclass(frozen=True)
class Store:
    """Models in `root`, as `name` or `owner/name`, and in huggingface_hub's cache.

    Files made from models are in `cache`. `hub_cache` is the folder of huggingface_hub's cache;
    None: its default.
    """

    root: Path
    cache: Path
    hub_cache: Path | None = None

    def resolve(
        self, name_or_path: str, progress: Progress | None = None, offline: bool = False
    ) -> Path:
        """Return the directory of the model `name_or_path` (see `find`), ready to run.

        For a GGUF file a directory of small files is made on first use; the weights stay in the
        file. A model in the hub cache with only .bin files is converted on first use.
        """
        path = self.find(name_or_path, offline)
        if _is_gguf(path):
            return gguf_directory(self.cache, path)
        if _in_hub_cache(path) and not any(path.glob("*.safetensors")):
            return snapshot_conversion(self.cache, path, progress)
        return path

    def find(self, name_or_path: str, offline: bool = False) -> Path:
        """Return the path of the model `name_or_path`, without downloading or converting it.

        `name_or_path` may be the path of a model directory, of a GGUF file or of a folder with one,
        an alias, or the name of a stored model: case is ignored, and a unique prefix of the last
        part is enough, as is OWNER/NAME of a repository of which one GGUF file is stored.
        Otherwise raises `ModelNotFound` with the download command as hint.
        """
        if not name_or_path.strip():
            raise ModelNotFound("the model name is empty", _LIST_HINT)
        path = user_path(name_or_path)
        if (model := _model_at(path)) is not None:
            return model
        if path.is_absolute() or name_or_path.startswith((".", "~")):
            raise _no_model_at(path)
        name = HubName.parse(name_or_path).model
        for models in (self._local(), self._hub_candidates(name)):
            found = _find_named(name, list(models))
            if found:
                return found.path
        raise self._not_found(name_or_path, offline)

    def list(self) -> list[StoredModel]:
        """Return all stored models, sorted by name."""
        return sorted([*self._local(), *self._hub_models()], key=lambda model: model.name.lower())

    def names(self) -> builtins.list[str]:
        """Return the names of `list` from folder names alone, fast enough for completion.

        May include a model of the hub cache that has no weights yet.
        """
        hub = list[str]()
        for name, folder in self._hub_folders():
            types = {kind for each in _folders(folder / "snapshots") for kind in _gguf_files(each)}
            hub += (_gguf_name(name, kind) for kind in types)
            if not types and any(folder.glob("snapshots/*/config.json")):
                hub.append(name)
        return sorted({*(name for name, _ in self._local_folders()), *hub}, key=str.lower)

    def derived(self) -> builtins.list[StoredModel]:
        """Return the files made from models, sorted by name."""
        found = [
            dataclasses.replace(_stored(each.name, each.path, "cache"), origin=each.origin)
            for each in derived_files(self.cache)
        ]
        return sorted(found, key=lambda model: model.name.lower())

    def removable(self, name: str) -> StoredModel:
        """Return what `remove` would delete; raises `ModelNotFound` if that is nothing."""
        found = _find_exact(name, self.list()) or self._incomplete(name) or self._derived(name)
        if found is not None:
            return found
        path = user_path(name)
        if _is_gguf(path) and path.exists():
            raise ModelNotFound(
                f"nothing is stored for {name}", f"the file itself is yours to delete: rm {name}"
            )
        raise ModelNotFound(f"model {name!r} is not installed", _LIST_HINT)

    def remove(self, name: str) -> StoredModel:
        """Delete the model of this alias or full name; returns the deleted model.

        Also deletes an interrupted download in the hub cache, and of a GGUF file, given by its
        name or path, the files made from it.
        """
        found = self.removable(name)
        try:
            if found.source == "cache":
                DerivedFiles(found.name, found.path).remove()
            elif found.source == "hub" and (found.files or _in_hub_cache(found.path)):
                self._remove_of_hub(found)
            else:
                # Renamed first: it is no longer a model, even if the deletion is interrupted.
                renamed = found.path.with_name(f".{found.path.name}.removed")
                shutil.rmtree(renamed, ignore_errors=True)
                found.path.rename(renamed)
                shutil.rmtree(renamed)
        except OSError as error:
            raise FileSystemError(f"cannot remove {found.path}: {error}") from error
        return found

    def has(self, name: str) -> bool:
        """Return whether a model of this full name or alias is stored, of any type."""
        return bool(_exact_matches(name, [*self._local(), *self._hub_candidates(name)]))

    def named(self, name: str) -> Path | None:
        """Return the directory of the stored model of this full name or alias; never a path."""
        found = _find_exact(name, [*self._local(), *self._hub_candidates(name)])
        return None if found is None else found.path

    def hub_folder(self) -> Path:
        """Return the folder of huggingface_hub's cache."""
        if self.hub_cache is not None:
            return self.hub_cache
        from huggingface_hub import constants

        return Path(constants.HF_HUB_CACHE)

    def free_bytes(self) -> int:
        """Return the free disk space for models."""
        existing = next(path for path in (self.root, *self.root.parents) if path.exists())
        return shutil.disk_usage(existing).free

    def _remove_of_hub(self, model: StoredModel) -> None:
        """Delete a model in the hub cache, and what was made from it. Raises OSError."""
        others = [each for each in self._hub_models() if each.repo == model.repo]
        if len(others) > 1:
            _remove_own_files(model)
        else:
            _remove_from_hub_cache(model, self.hub_cache)
        conversion = conversion_path(self.cache, model.path)
        if not model.files and conversion.is_dir():
            shutil.rmtree(conversion)
        for each in derived_files(self.cache):
            if each.origin in model.files:
                each.remove()

    def _incomplete(self, name: str) -> StoredModel | None:
        """Return the hub cache folder of an incomplete download of `name`."""
        repo = repository_of(name) or name
        folder_name = f"models--{repo.replace('/', '--')}".lower()
        for folder in _folders(self.hub_folder()):
            if folder.name.lower() == folder_name:
                blobs = [file for file in (folder / "blobs").glob("*") if file.is_file()]
                size_bytes = sum(file.stat().st_size for file in blobs)
                return StoredModel(repo, folder, size_bytes, folder.stat().st_mtime, "hub")
        return None

    def _derived(self, name: str) -> StoredModel | None:
        """Return the files made from the model `name`, or from the GGUF file with that path."""
        models, found = self.derived(), []
        with contextlib.suppress(FileNotFoundError):  # the working folder was deleted
            path = Path(os.path.abspath(user_path(name)))  # noqa: PTH100 - links are kept
            found = [model for model in models if model.origin == path]
        found = found or [model for model in models if model.name.lower() == name.lower()]
        if len(found) > 1:
            places = ", ".join(str(model.origin or model.path) for model in found)
            raise ModelNotFound(f"{name!r} is ambiguous: {places}", "use the path of the file")
        return found[0] if found else None

    def _hub_folders(self) -> Iterator[tuple[str, Path]]:
        """Yield the names and folders of the models in the hub cache, complete or not."""
        for folder in _folders(self.hub_folder()):
            if folder.name.startswith("models--"):
                yield folder.name.removeprefix("models--").replace("--", "/"), folder

    def _hub_models(self) -> Iterator[StoredModel]:
        for name, folder in self._hub_folders():
            yield from _models_of(name, folder)

    def _hub_candidates(self, wanted: str) -> Iterator[StoredModel]:
        """Yield the models in the hub cache that `wanted` may name, without opening the others."""
        repo = (repository_of(wanted) or wanted.partition(":")[0]).lower()
        exact = (repo, repo.rpartition("/")[2])
        for name, folder in self._hub_folders():
            is_prefix = name.lower().rpartition("/")[2].startswith(repo)
            if is_prefix or name.lower() in exact:
                yield from _models_of(name, folder)

    def _local(self) -> Iterator[StoredModel]:
        for name, path in self._local_folders():
            yield _stored(name, path, "local")

    def _local_folders(self) -> Iterator[tuple[str, Path]]:
        for path in _folders(self.root):
            inner = [path] if (path / "config.json").is_file() else _folders(path)
            for model in inner:
                if (model / "config.json").is_file():
                    yield model.relative_to(self.root).as_posix(), model

    def _not_found(self, name: str, offline: bool) -> ModelNotFound:
        known = "/" in HubName.parse(name).repo or repository_of(name) is not None
        hint = f"swiftchat download {name if known else 'OWNER/NAME'}"
        if offline:
            hint += " (needs network access)"
        stored = [near for near in nearest(name, self.names()) if self.has(near)]
        if stored:
            hint += f"; nearest installed: {', '.join(stored)}"
        aliases = [] if known else nearest(name, known_names())
        if aliases:
            hint += f"; nearest short names: {', '.join(aliases)}"
        elif not (known or stored):
            hint += "; swiftchat help models lists short names"
        return ModelNotFound(f"model {name!r} is not installed", hint)


def default_store() -> Store:
    """Return the store in the user's data and cache folders."""
    return Store(
        platformdirs.user_data_path("swiftchat") / "models",
        platformdirs.user_cache_path("swiftchat") / "converted",
    )


def _in_hub_cache(path: Path) -> bool:
    return path.parent.name == "snapshots"


def _is_gguf(path: Path) -> bool:
    # The model directory of a GGUF file has the name of the file.
    return path.suffix.lower() == ".gguf" and not path.is_dir()


def _model_at(path: Path) -> Path | None:
    """Return the model directory or GGUF file at `path`, which may be a folder with one file."""
    if _is_gguf(path):
        return path
    has_config = (path / "config.json").is_file()
    if has_config and _has_weights(path):
        return path
    files = _gguf_files(path) if path.is_dir() else {}
    if len(files) > 1:
        first = next(iter(files.values()))[0]
        raise ModelNotFound(
            f"{path} holds several models: {', '.join(files)}",
            f"use the path of one: -m {shlex.quote(str(first))}",
        )
    for file, *_ in files.values():
        return file
    return path if has_config else None


def _gguf_files(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each GGUF model in a folder, or one level below it, by type."""
    found = [*folder.glob("*.[gG][gG][uU][fF]"), *folder.glob("*/*.[gG][gG][uU][fF]")]
    names = [file.relative_to(folder).as_posix() for file in found if not file.is_dir()]
    return {kind: [folder / name for name in files] for kind, files in gguf_models(names).items()}


def _gguf_name(repo: str, kind: str) -> str:
    return f"{repo}:{kind}" if kind else repo


def _has_weights(folder: Path) -> bool:
    return any(map(any, map(folder.glob, ("*.safetensors", TORCH_FILES))))


def _no_model_at(path: Path) -> ModelNotFound | BadModelFile:
    if path.is_dir():
        convert = f"swiftchat convert {shlex.quote(str(path))} DESTINATION"
        return BadModelFile(
            f"{path} is not a model directory: config.json is missing",
            f"files of Meta, Megatron-LM or OpenAI: {convert}",
        )
    if path.exists():
        return ModelNotFound(f"{path} is not a model", "a model is a directory or a .gguf file")
    return ModelNotFound(f"no model at {path}")


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(
            entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith(".")
        )
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise FileSystemError.reading(path, error) from error


def _stored(name: str, path: Path, source: str) -> StoredModel:
    # GGUF files are models of their own.
    found = [file for file in path.iterdir() if file.is_file() and not _is_gguf(file)]
    files = [file.stat() for file in found]
    size_bytes = sum(file.st_size for file in files)
    return StoredModel(name, path, size_bytes, max(file.st_mtime for file in files), source)


def _exact_matches(name: str, models: list[StoredModel]) -> list[StoredModel]:
    """Return the model of that full name; an alias also means a local model of its name.

    Without it, the models of the repository of that name, which have a type each.
    """
    repo = repository_of(name)
    wanted = {name.lower()} if repo is None else {repo.lower(), repo.lower().rpartition("/")[2]}
    found = [model for model in models if model.name.lower() in wanted]
    return found[:1] or [model for model in models if model.repo.lower() in wanted]


def _find_exact(name: str, models: list[StoredModel]) -> StoredModel | None:
    """Return the only one of `_exact_matches`; `ModelNotFound` if there are several."""
    return _only(name, _exact_matches(name, models))


def _only(name: str, found: list[StoredModel]) -> StoredModel | None:
    if len(found) > 1:
        names = ", ".join(model.name for model in found)
        raise ModelNotFound(f"{name!r} is ambiguous: {names}", "use the full name")
    return found[0] if found else None


def _find_named(name: str, models: list[StoredModel]) -> StoredModel | None:
    if repository_of(name) is not None:
        return _find_exact(name, models)
    return _find_by_prefix(name, models)


def _find_by_prefix(name: str, models: list[StoredModel]) -> StoredModel | None:
    """Return the model `name` or with this prefix; `ModelNotFound` if it is ambiguous."""
    wanted = name.lower()
    last_parts = [model.name.lower().rpartition("/")[2] for model in models]
    for found in (
        _exact_matches(name, models),
        [model for model, last in zip(models, last_parts, strict=True) if last == wanted],
        [model for model, last in zip(models, last_parts, strict=True) if last.startswith(wanted)],
    ):
        if found:
            return _only(name, found)
    return None


def _models_of(name: str, folder: Path) -> Iterator[StoredModel]:
    """Yield the models of a repository in the hub cache: its GGUF files by type, and others.

    Of several revisions, that of huggingface_hub comes first.
    """
    if model := _hub_model(name, folder):
        yield model
    main, seen = _main_snapshot(name, folder.parent), set[str]()
    revisions = _folders(folder / "snapshots")
    for revision in sorted(revisions, key=lambda each: each != main):
        for kind, files in _gguf_files(revision).items():
            if kind not in seen:
                seen.add(kind)
                yield _stored_files(_gguf_name(name, kind), files)


def _stored_files(name: str, files: list[Path]) -> StoredModel:
    states = [file.stat() for file in files]
    size_bytes = sum(state.st_size for state in states)
    modified = max(state.st_mtime for state in states)
    return StoredModel(name, files[0], size_bytes, modified, "hub", files=tuple(files))


def _hub_model(name: str, folder: Path) -> StoredModel | None:
    """Return a model in the hub cache at huggingface_hub's revision, else the newest complete one.

    None without a revision that has config and weights.
    """
    revisions = [
        revision
        for revision in _folders(folder / "snapshots")
        if (revision / "config.json").is_file() and _has_weights(revision)
    ]
    if not revisions:
        return None
    models = [_stored(name, revision, "hub") for revision in revisions]
    main = _main_snapshot(name, folder.parent)
    newest = max(models, key=lambda model: model.modified)
    return next((model for model in models if model.path == main), newest)


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


def _remove_from_hub_cache(model: StoredModel, hub_cache: Path | None) -> None:
    from huggingface_hub import scan_cache_dir

    cache = scan_cache_dir(hub_cache)
    for repo in cache.repos:
        if repo.repo_id == model.repo and repo.repo_type == "model":
            hashes = [revision.commit_hash for revision in repo.revisions]
            cache.delete_revisions(*hashes).execute()


def _remove_own_files(model: StoredModel) -> None:
    """Delete the files of one of several models of a repository in the hub cache.

    What another revision has under these names goes too; content that other names have stays.
    """
    folder = next(each for each in model.path.parents if each.name == "snapshots")
    links = [each for each in folder.rglob("*") if not each.is_dir()]
    places = {each: each.relative_to(folder).parts[1:] for each in links}
    wanted = {places[file] for file in model.files}
    own = [
        each
        for each, place in places.items()
        if (place in wanted if wanted else not _is_gguf(each))
    ]
    kept = {each.resolve() for each in links if each not in own}
    for each in own:
        blob = each.resolve()
        each.unlink()
        if blob not in kept:
            blob.unlink(missing_ok=True)
