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
from swiftchat.weights.files.disk import Progress, free_bytes
from swiftchat.weights.files.paths import user_path
from swiftchat.weights.hub.cached_models import (
    StoredModel,
    folders,
    gguf_files,
    gguf_name,
    has_weights,
    is_gguf,
    models_of,
    remove,
    stored_directory,
)
from swiftchat.weights.hub.known_models import nearest, short_names, sources_of
from swiftchat.weights.hub.names import HubName, matching_type

_LIST_HINT = "swiftchat list shows the installed models"
_UNFINISHED = ".unfinished"
_MAX_LISTED = 6  # names in a message


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
        if is_gguf(path):
            return gguf_directory(self.cache, path)
        if _in_hub_cache(path) and not any(path.glob("*.safetensors")):
            return snapshot_conversion(self.cache, path, progress)
        return path

    def find(self, name_or_path: str, offline: bool = False) -> Path:
        """Return the path of the model `name_or_path`, without downloading or converting it.

        `name_or_path` may be the path of a model directory, of a GGUF file or of a folder with one,
        a short name, or the name of a stored model: case is ignored, and a unique prefix of the
        last part is enough, as is OWNER/NAME of a repository of which one GGUF file is stored.
        Otherwise raises `ModelNotFound` with the download command as hint.
        """
        if not name_or_path.strip():
            raise ModelNotFound("the model name is empty", _LIST_HINT)
        path = user_path(name_or_path)
        if (model := _model_at(path)) is not None:
            return model
        if path.is_absolute() or name_or_path.startswith((".", "~")):
            raise _no_model_at(path)
        # As typed from a browser, or OWNER/NAME/FILE.gguf.
        name = HubName.parse(name_or_path).model
        local, hub = list(self._local()), list(self._hub_candidates(name))
        found = _find_exact(name, [*local, *hub])
        if found is None and not sources_of(name):
            found = _find_by_prefix(name, local) or _find_by_prefix(name, hub)
        if found is not None:
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
            types = {kind for each in folders(folder / "snapshots") for kind in gguf_files(each)}
            hub += (gguf_name(name, kind) for kind in types)
            configs = [each.parent for each in folder.glob("snapshots/*/config.json")]
            if configs and (not types or any(map(has_weights, configs))):
                hub.append(name)
        return sorted({*(name for name, _ in self._local_folders()), *hub}, key=str.lower)

    def derived(self) -> builtins.list[StoredModel]:
        """Return the files made from models, sorted by name."""
        found = [
            dataclasses.replace(stored_directory(each.name, each.path, "cache"), origin=each.origin)
            for each in derived_files(self.cache)
        ]
        return sorted(found, key=lambda model: model.name.lower())

    def removable(self, name: str) -> StoredModel:
        """Return what `remove` would delete; raises `ModelNotFound` if that is nothing."""
        found = _find_exact(name, self.list()) or self._incomplete(name) or self._derived(name)
        if found is not None:
            return found
        path = user_path(name)
        if is_gguf(path) and path.exists():
            raise ModelNotFound(
                f"nothing is stored for {name}", f"the file itself is yours to delete: rm {name}"
            )
        raise ModelNotFound(f"model {name!r} is not installed", _LIST_HINT)

    def remove(self, name: str) -> StoredModel:
        """Delete the model of this short or full name; returns the deleted model.

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

    def stored(self, name: str) -> builtins.list[StoredModel]:
        """Return the models that a full or short name means: those of each type without one."""
        return _exact_matches(name, [*self._local(), *self._hub_candidates(name)])

    def has(self, name: str) -> bool:
        """Return whether a model of this full or short name is stored, of any type."""
        return bool(self.stored(name))

    def named(self, name: str) -> Path | None:
        """Return the directory or GGUF file of the stored model of this full or short name.

        None if it is a path, or the name of several.
        """
        found = self.stored(name)
        return found[0].path if len(found) == 1 else None

    def place(self, name: str) -> Path:
        """Return the directory of the model OWNER/NAME:FORM, which is quantized on this machine."""
        return self.root / name

    def unfinished(self, name: str) -> Path:
        """Return the folder of such a model as long as it is not complete."""
        place = self.place(name)
        return place.with_name(f".{place.name}{_UNFINISHED}")

    def hub_folder(self) -> Path:
        """Return the folder of huggingface_hub's cache."""
        if self.hub_cache is not None:
            return self.hub_cache
        from huggingface_hub import constants

        return Path(constants.HF_HUB_CACHE)

    def free_bytes(self) -> int:
        """Return the free disk space for downloads."""
        return free_bytes(self.hub_folder())

    def _remove_of_hub(self, model: StoredModel) -> None:
        """Delete a model in the hub cache, and what was made from it. Raises OSError."""
        of_repo = [each for each in self._hub_models() if each.repo == model.repo]
        others = [each for each in of_repo if each.name != model.name]
        remove(model, self.hub_cache, others)
        conversion = conversion_path(self.cache, model.path)
        if not model.files and conversion.is_dir():
            shutil.rmtree(conversion)
        for each in derived_files(self.cache):
            if each.origin in model.files:
                each.remove()

    def _incomplete(self, name: str) -> StoredModel | None:
        """Return the folder of an incomplete download of `name`."""
        names = [source.lower() for source in sources_of(name) or (name,)]
        for folder in self.root.glob(f"*/.*{_UNFINISHED}"):
            full = f"{folder.parent.name}/{folder.name[1 : -len(_UNFINISHED)]}"
            if full.lower() in names:
                size_bytes = sum(file.stat().st_blocks * 512 for file in folder.rglob("*"))
                return StoredModel(full, folder, size_bytes, folder.stat().st_mtime, "local")
        repos = [source.partition(":")[0] for source in sources_of(name) or (name,)]
        folder_names = {f"models--{repo.replace('/', '--')}".lower(): repo for repo in repos}
        for folder in folders(self.hub_folder()):
            repo = folder_names.get(folder.name.lower())
            if repo is not None and not any(models_of(repo, folder)):
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
        for folder in folders(self.hub_folder()):
            if folder.name.startswith("models--"):
                yield folder.name.removeprefix("models--").replace("--", "/"), folder

    def _hub_models(self) -> Iterator[StoredModel]:
        for name, folder in self._hub_folders():
            yield from models_of(name, folder)

    def _hub_candidates(self, wanted: str) -> Iterator[StoredModel]:
        """Yield the models in the hub cache that `wanted` may name, without opening the others."""
        sources = sources_of(wanted)
        wanted_repos = [source.partition(":")[0].lower() for source in sources or (wanted,)]
        repos = {each for repo in wanted_repos for each in (repo, repo.rpartition("/")[2])}
        for name, folder in self._hub_folders():
            last = name.lower().rpartition("/")[2]
            is_prefix = not sources and any(map(last.startswith, repos))
            if is_prefix or name.lower() in repos:
                yield from models_of(name, folder)

    def _local(self) -> Iterator[StoredModel]:
        for name, path in self._local_folders():
            yield stored_directory(name, path, "local")

    def _local_folders(self) -> Iterator[tuple[str, Path]]:
        for path in folders(self.root):
            inner = [path] if (path / "config.json").is_file() else folders(path)
            for model in inner:
                if (model / "config.json").is_file():
                    yield model.relative_to(self.root).as_posix(), model

    def _not_found(self, name: str, offline: bool) -> ModelNotFound:
        if is_gguf(user_path(name)) and HubName.parse(name).file is None:
            return ModelNotFound(f"no file {name}")
        known = "/" in HubName.parse(name).repo or bool(sources_of(name))
        hint = f"swiftchat download {name if known else 'OWNER/NAME'}"
        if offline:
            hint += " (needs network access)"
        stored = [near for near in nearest(name, self.names()) if self.has(near)]
        if stored:
            hint += f"; nearest installed: {', '.join(stored)}"
        short = [] if known else nearest(name, short_names())
        if short:
            hint += f"; nearest short names: {', '.join(short)}"
        elif not (known or stored):
            hint += "; swiftchat models lists short names"
        return ModelNotFound(f"model {name!r} is not installed", hint)


def default_store() -> Store:
    """Return the store in the user's data and cache folders."""
    return Store(
        platformdirs.user_data_path("swiftchat") / "models",
        platformdirs.user_cache_path("swiftchat") / "converted",
    )


def _in_hub_cache(path: Path) -> bool:
    return path.parent.name == "snapshots"


def _model_at(path: Path) -> Path | None:
    """Return the model directory or GGUF file at `path`, or the only one in that folder."""
    if path.is_file() and is_gguf(path):
        return path
    has_config = (path / "config.json").is_file()
    if has_config and has_weights(path):
        return path
    files = list(gguf_files(path).values()) if path.is_dir() else []
    if len(files) == 1:
        return files[0][0]
    return path if has_config else None


def _no_model_at(path: Path) -> ModelNotFound | BadModelFile:
    if path.is_dir():
        if files := [file for file, *_ in gguf_files(path).values()]:
            return ModelNotFound(
                f"{path} holds {len(files)} models: {_listed([file.name for file in files])}",
                f"name one: swiftchat -m {shlex.quote(str(files[0]))}",
            )
        convert = f"swiftchat convert {shlex.quote(str(path))} DESTINATION"
        return BadModelFile(
            f"{path} is not a model directory: config.json is missing",
            f"files of Meta, Megatron-LM or OpenAI: {convert}",
        )
    if path.exists():
        return ModelNotFound(f"{path} is not a model", "a model is a directory or a .gguf file")
    return ModelNotFound(f"no file {path}" if is_gguf(path) else f"no model at {path}")


def _listed(names: list[str]) -> str:
    more = len(names) - _MAX_LISTED
    return ", ".join(names[:_MAX_LISTED]) + (f" and {more} more" if more > 0 else "")


def _exact_matches(name: str, models: list[StoredModel]) -> list[StoredModel]:
    """Return the model of that full name; a short name also means a local model of its name.

    Of a short name, the first of its forms that is stored. Without one, the models of the
    repository of that name, which have a type each.
    """
    wanted = name.lower()
    sources = [source.lower() for source in sources_of(name)]
    names = [each for source in sources for each in (source, source.rpartition("/")[2])]
    for each in names or [wanted]:
        if found := _named(each, models):
            return found[:1]
    return [model for model in models if model.repo.lower() == wanted]


def _named(wanted: str, models: list[StoredModel]) -> list[StoredModel]:
    repo, _, kind = wanted.partition(":")
    if not kind:
        return [model for model in models if model.name.lower() == repo]
    types = {model.gguf_type: model for model in models if model.repo.lower() == repo}
    found = matching_type(kind, types)
    return [] if found is None else [types[found]]


def _find_exact(name: str, models: list[StoredModel]) -> StoredModel | None:
    """Return the only one of `_exact_matches`; `ModelNotFound` if there are several."""
    return _only(name, _exact_matches(name, models))


def _only(name: str, found: list[StoredModel]) -> StoredModel | None:
    if len(found) > 1:
        names = ", ".join(model.name for model in found)
        raise ModelNotFound(f"{name!r} is ambiguous: {names}", "use the full name")
    return found[0] if found else None


def _find_by_prefix(name: str, models: list[StoredModel]) -> StoredModel | None:
    """Return the model whose last part is `name`, or begins so; `ModelNotFound` for several."""
    wanted = name.lower()
    last_parts = [model.name.lower().rpartition("/")[2] for model in models]
    for found in (
        [model for model, last in zip(models, last_parts, strict=True) if last == wanted],
        [model for model, last in zip(models, last_parts, strict=True) if last.startswith(wanted)],
    ):
        if found:
            return _only(name, found)
    return None
