"""Where models live on this machine, and how a name becomes a model directory."""

import builtins
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from swiftchat.errors import BadModelFile, FileSystemError, ModelNotFound
from swiftchat.weights.files.disk import Progress
from swiftchat.weights.formats.weight_files import TORCH_FILES
from swiftchat.weights.hub.aliases import known_names, nearest, repository_of

__all__ = ["Store", "StoredModel", "default_store"]


@dataclass(frozen=True)
class StoredModel:
    """A model on this machine: `modified` in seconds since 1970, `source` "local" or "hub"."""

    name: str
    path: Path
    size_bytes: int
    modified: float
    source: str


@dataclass(frozen=True)
class Store:
    """Models below `root`, as `name` or `owner/name`; what is converted on first use in `cache`.

    `hub_cache` is where the hub's library keeps its models; None: where it says itself.
    """

    root: Path
    cache: Path
    hub_cache: Path | None = None

    def resolve(
        self, name_or_path: str, progress: Progress | None = None, offline: bool = False
    ) -> Path:
        """The directory of the model that `name_or_path` means (see `find`), ready to run.

        For a GGUF file, and a model in the hub's cache that has only .bin files, that is its
        conversion, made on first use.
        """
        path = self.find(name_or_path, offline)
        if path.suffix.lower() == ".gguf":
            return _converted(path, self.cache / _conversion_of_file(path), progress)
        if _is_hubs(path) and not any(path.glob("*.safetensors")):
            return _converted(path, self.cache / _conversion_of_snapshot(path), progress)
        return path

    def find(self, name_or_path: str, offline: bool = False) -> Path:
        """Where the model that `name_or_path` means is; nothing is downloaded or converted.

        A model directory and a GGUF file stand for themselves. A name is looked up here and in
        the hub's cache: without regard to case, an alias as its model, and a unique beginning of
        its last part will do. Otherwise raises `ModelNotFound` with the line that would bring the
        model.
        """
        if not name_or_path.strip():
            raise ModelNotFound("the model's name is empty", "swiftchat list shows what is here")
        path = Path(name_or_path).expanduser()
        if path.suffix.lower() == ".gguf" or (path / "config.json").is_file():
            return path
        if path.is_absolute() or name_or_path.startswith((".", "~")):
            raise _no_model_at(path)
        for models in (self._local(), _hub_models(self.hub_cache)):
            found = _named(name_or_path, list(models))
            if found:
                return found.path
        raise self._not_found(name_or_path, offline)

    def list(self) -> list[StoredModel]:
        """Every model here and in the hub's cache, by name."""
        return sorted(
            [*self._local(), *_hub_models(self.hub_cache)], key=lambda model: model.name.lower()
        )

    def names(self) -> builtins.list[str]:
        """What `list` would name, found by looking at folders alone: quick enough for completion.

        May name a model of the hub's cache that has no weights yet.
        """
        hub = [
            folder.name.removeprefix("models--").replace("--", "/")
            for folder in _folders(self.hub_folder())
            if folder.name.startswith("models--") and any(folder.glob("snapshots/*/config.json"))
        ]
        return sorted({*(name for name, _ in self._local_folders()), *hub}, key=str.lower)

    def remove(self, name: str) -> StoredModel:
        """Delete a model, named by its alias or in full; returns what was deleted.

        What an interrupted download left in the hub's cache is deleted like a model.
        """
        found = _exactly(name, self.list()) or self._unfinished(name)
        if found is None:
            raise ModelNotFound(
                f"no model named {name!r} on this machine", "swiftchat list shows what is here"
            )
        try:
            if found.source == "hub" and _is_hubs(found.path):
                _remove_from_hub_cache(found, self.hub_cache)
                conversion = self.cache / _conversion_of_snapshot(found.path)
                if conversion.is_dir():
                    shutil.rmtree(conversion)
            else:
                # Under the new name it is no model any more, even if deleting is interrupted.
                leaving = found.path.with_name(f".{found.path.name}.removed")
                shutil.rmtree(leaving, ignore_errors=True)
                found.path.rename(leaving)
                shutil.rmtree(leaving)
        except OSError as error:
            raise FileSystemError(f"cannot remove {found.path}: {error}") from error
        return found

    def has(self, name: str) -> bool:
        """Whether the model of this whole name or alias is on this machine."""
        return _exactly(name, self.list()) is not None

    def hub_folder(self) -> Path:
        """Where the hub's library keeps its models."""
        if self.hub_cache is not None:
            return self.hub_cache
        from huggingface_hub import constants

        return Path(constants.HF_HUB_CACHE)

    def _unfinished(self, name: str) -> StoredModel | None:
        """The hub's folder for `name` where no model is in it yet, or only without weights."""
        repo = repository_of(name) or name
        wanted = f"models--{repo.replace('/', '--')}".lower()
        for folder in _folders(self.hub_folder()):
            if folder.name.lower() == wanted:
                blobs = [file for file in (folder / "blobs").glob("*") if file.is_file()]
                size_bytes = sum(file.stat().st_size for file in blobs)
                return StoredModel(repo, folder, size_bytes, folder.stat().st_mtime, "hub")
        return None

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
        known = name.count("/") == 1 or repository_of(name) is not None
        hint = f"swiftchat download {name if known else 'OWNER/NAME'}"
        if offline:
            hint += " (needs the network)"
        here = nearest(name, [model.name for model in self.list()])
        if here:
            hint += f"; nearest here: {', '.join(here)}"
        aliases = [] if known else nearest(name, known_names())
        if aliases:
            hint += f"; nearest short names: {', '.join(aliases)}"
        return ModelNotFound(f"no model named {name!r} on this machine", hint)


def default_store() -> Store:
    """The store in this user's data and cache folders."""
    return Store(
        platformdirs.user_data_path("swiftchat") / "models",
        platformdirs.user_cache_path("swiftchat") / "converted",
    )


def _is_hubs(path: Path) -> bool:
    return path.parent.name == "snapshots"


def _conversion_of_snapshot(path: Path) -> str:
    # The hub names a snapshot by its commit; its files never change.
    return _keyed(path.parent.parent.name, str(path))


def _conversion_of_file(path: Path) -> str:
    try:
        real = path.resolve(strict=True)
        state = real.stat()
    except FileNotFoundError as error:
        raise ModelNotFound(f"no file {path}") from error
    except OSError as error:
        raise FileSystemError(f"cannot read {path}: {error.strerror}") from error
    return _keyed(real.stem, f"{real}\0{state.st_size}\0{state.st_mtime_ns}\0packed")


def _keyed(name: str, identity: str) -> str:
    """A folder's name that no other `identity` leads to."""
    import hashlib  # not at the top: most models need no conversion

    return f"{name}-{hashlib.sha256(os.fsencode(identity)).hexdigest()[:16]}"


def _converted(source: Path, destination: Path, progress: Progress | None) -> Path:
    if not destination.is_dir():
        # Here, not at the top: looking up a name should not import numpy.
        from swiftchat.weights.convert.convert import convert

        try:
            # By its own name, which tells the other files of a split model.
            convert(source, destination, progress=progress, keep_gguf_blocks=True)
        except FileSystemError:
            # Another process may have finished the same conversion since the look above.
            if not destination.is_dir():
                raise
    return destination


def _no_model_at(path: Path) -> ModelNotFound | BadModelFile:
    if path.is_dir():
        return BadModelFile(
            f"{path} is no model directory: config.json is missing",
            f"with Meta's, Megatron-LM's or OpenAI's files: swiftchat convert {path} DESTINATION",
        )
    return ModelNotFound(f"no model at {path}")


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(
            entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith(".")
        )
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FileSystemError(f"cannot read {path}: {error.strerror}") from error


def _stored(name: str, path: Path, source: str) -> StoredModel:
    files = [file.stat() for file in path.iterdir() if file.is_file()]
    size_bytes = sum(file.st_size for file in files)
    return StoredModel(name, path, size_bytes, max(file.st_mtime for file in files), source)


def _exactly(name: str, models: list[StoredModel]) -> StoredModel | None:
    """The model of that whole name; an alias also means a local model named as its repository."""
    repo = repository_of(name)
    wanted = {name.lower()} if repo is None else {repo.lower(), repo.lower().rpartition("/")[2]}
    return next((model for model in models if model.name.lower() in wanted), None)


def _named(name: str, models: list[StoredModel]) -> StoredModel | None:
    if repository_of(name) is not None:
        return _exactly(name, models)
    return _matching(name, models)


def _matching(name: str, models: list[StoredModel]) -> StoredModel | None:
    """The one model that `name` means; several possible ones raise `ModelNotFound`."""
    wanted = name.lower()
    last_parts = [model.name.lower().rpartition("/")[2] for model in models]
    for found in (
        [model for model in models if model.name.lower() == wanted],
        [model for model, last in zip(models, last_parts, strict=True) if last == wanted],
        [model for model, last in zip(models, last_parts, strict=True) if last.startswith(wanted)],
    ):
        if len(found) > 1:
            names = ", ".join(model.name for model in found)
            raise ModelNotFound(f"{name!r} could be any of {names}", "give the whole name")
        if found:
            return found[0]
    return None


def _hub_models(hub_cache: Path | None) -> Iterator[StoredModel]:
    """Models in the hub's cache with config and weights; of each the revision its library takes."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir(hub_cache).repos
    except CacheNotFound:
        return
    for repo in repos:
        revisions = [
            revision.snapshot_path
            for revision in sorted(repo.revisions, key=lambda revision: -revision.last_modified)
            if (revision.snapshot_path / "config.json").is_file()
            and any(map(any, map(revision.snapshot_path.glob, ("*.safetensors", TORCH_FILES))))
        ]
        if repo.repo_type == "model" and revisions:
            main = _main_snapshot(repo.repo_id, hub_cache)
            path = main if main in revisions else revisions[0]
            yield _stored(repo.repo_id, path, "hub")


def _main_snapshot(repo_id: str, hub_cache: Path | None) -> Path | None:
    """The revision the hub's library itself would take; only looks, and only on this machine."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        # Asking for one small file, because other patterns fail over files left out on purpose.
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
        if repo.repo_id == model.name and repo.repo_type == "model":
            hashes = [revision.commit_hash for revision in repo.revisions]
            cache.delete_revisions(*hashes).execute()
