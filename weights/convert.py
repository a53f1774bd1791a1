"""A model of any known source made into a Hugging Face directory, all of it or nothing."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swiftchat.errors import FileSystemError, ModelNotFound, UsageError
from swiftchat.weights.appearing import appearing, as_file_system_error
from swiftchat.weights.checkpoint import INDEX, SINGLE
from swiftchat.weights.config import DTYPES
from swiftchat.weights.disk import require_space
from swiftchat.weights.lock import exclusive
from swiftchat.weights.manifest import MANIFEST, manifest, self_check
from swiftchat.weights.plan import Plan, json_bytes
from swiftchat.weights.progress import Progress
from swiftchat.weights.rounding import rounded
from swiftchat.weights.safetensors_file import create, header_bytes, read_header
from swiftchat.weights.sources import plan_of

__all__ = ["Outline", "convert", "outline"]

_SAMPLE_BYTES = 1 << 20
_DEFAULT_SHARD_BYTES = 5e9
# Interpreter, numpy, the tables of tensors, and the runs of numbers on their way.
_STANDING_BYTES = 128_000_000


@dataclass(frozen=True)
class Outline:
    """What a conversion would write: bytes by file, without the manifest, and what it takes.

    `peak_bytes` is an upper estimate of the memory in use at a time, mapped files included.
    """

    files: Mapping[str, int]
    num_tensors: int
    dtype: str
    peak_bytes: int


def convert(
    source: Path,
    destination: Path,
    *,
    dtype: str | None = None,
    shard_size_bytes: float = _DEFAULT_SHARD_BYTES,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    progress: Progress | None = None,
    generation_defaults: Mapping[str, Any] | None = None,
) -> None:
    """Write the model of `source` (see `plan_of`) as a new directory.

    `dtype` None keeps a uniform source's own and takes bfloat16 for quantised weights. Numbers
    are rounded to the nearest, ties to even. `only` and `skip` are patterns of Hugging Face's
    tensor names. `generation_defaults` go into `generation_config.json` where the source says
    nothing of its own.

    The directory appears under its name when it is whole, has been read back and agrees with
    what was written; after any failure or interrupt nothing of it is left. Of two processes
    converting the same source to one destination, one works and the other waits for it.

    Raises `FileSystemError` when `destination` exists, the disk is full or cannot be written;
    `BadModelFile` when the source is damaged or a number does not fit `dtype`; `UsageError`
    for an unknown dtype and for patterns that match nothing.
    """
    if destination.exists():
        raise FileSystemError(f"{destination} exists already", "choose another name or remove it")
    plan = _planned(source, dtype, only, skip)
    destination = Path(os.path.abspath(destination))  # noqa: PTH100 - resolve() would follow links
    if generation_defaults:
        plan = plan.with_generation_defaults(generation_defaults)

    def waiting() -> None:
        if progress:
            progress("waiting for another process", 0, plan.total_bytes)

    with as_file_system_error(destination, plan.total_bytes):
        fingerprint = _fingerprint(plan)
        destination.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(destination, waiting):
            if destination.exists():
                if _fingerprint_of(destination) == fingerprint:
                    return
                raise FileSystemError(f"{destination} was made meanwhile from something else")
            require_space(destination, plan.total_bytes)
            with appearing(destination) as directory:
                _write(plan, directory, shard_size_bytes, fingerprint, progress)


def outline(
    source: Path,
    *,
    dtype: str | None = None,
    shard_size_bytes: float = _DEFAULT_SHARD_BYTES,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
) -> Outline:
    """What `convert` would write with these arguments; raises what it raises before it writes."""
    plan = _planned(source, dtype, only, skip)
    files = {name: len(content) for name, content in plan.files.items()}
    shards = _named_shards(plan, shard_size_bytes)
    for file, names in shards.items():
        header = header_bytes(plan.announced(names), _metadata(_fingerprint(plan)))
        files[file] = len(header) + sum(map(plan.tensor_bytes, names))
    if len(shards) > 1:
        files[INDEX] = len(_index(plan, shards))
    # The widest dtype a source has is float32; its pages count while they are read.
    largest_bytes = max(map(plan.tensor_bytes, plan.shapes))
    as_read_bytes = largest_bytes * (1 if plan.dtype == "float32" else 2)
    return Outline(
        files, len(plan.shapes), plan.dtype, largest_bytes + as_read_bytes + _STANDING_BYTES
    )


def _planned(source: Path, dtype: str | None, only: Sequence[str], skip: Sequence[str]) -> Plan:
    if dtype is not None and dtype not in DTYPES:
        raise UsageError(f"unknown dtype {dtype!r}", f"one of {', '.join(DTYPES)}")
    if not source.exists():
        raise ModelNotFound(f"no model at {source}")
    plan = plan_of(source, dtype)
    return plan.selected(only, skip) if only or skip else plan


def _fingerprint(plan: Plan) -> str:
    """A name for source, dtype and tensors: sizes and both ends of the files, hashed."""
    digest = hashlib.sha256(plan.dtype.encode())
    digest.update(json_bytes(dict(plan.shapes)))
    for path in plan.sources:
        size = path.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with path.open("rb") as file:
            digest.update(file.read(_SAMPLE_BYTES))
            file.seek(max(0, size - _SAMPLE_BYTES))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _fingerprint_of(destination: Path) -> str | None:
    """The fingerprint an earlier conversion wrote into its first weight file."""
    for path in sorted(destination.glob("*.safetensors")):
        return read_header(path)[1].get("swiftchat_source")
    return None


def _metadata(fingerprint: str) -> dict[str, str]:
    return {"format": "pt", "swiftchat_source": fingerprint}


def _named_shards(plan: Plan, shard_size_bytes: float) -> dict[str, list[str]]:
    shards = plan.shards(shard_size_bytes)
    if len(shards) == 1:
        return {SINGLE: shards[0]}
    return {
        f"model-{number:05}-of-{len(shards):05}.safetensors": names
        for number, names in enumerate(shards, 1)
    }


def _index(plan: Plan, shards: Mapping[str, Sequence[str]]) -> bytes:
    weight_map = {name: file for file, names in shards.items() for name in names}
    return json_bytes({"metadata": {"total_size": plan.tensors_bytes}, "weight_map": weight_map})


def _write(
    plan: Plan,
    directory: Path,
    shard_size_bytes: float,
    fingerprint: str,
    progress: Progress | None,
) -> None:
    shards = _named_shards(plan, shard_size_bytes)
    small = dict(plan.files)
    if len(shards) > 1:
        small[INDEX] = _index(plan, shards)
    digests = {}
    for name, content in small.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(content)
        digests[name] = hashlib.sha256(content).hexdigest()
    done = 0
    for file, names in shards.items():
        announced = plan.announced(names)
        with create(directory / file, announced, _metadata(fingerprint)) as writer:
            for name in names:
                writer.write(name, rounded(name, plan.shapes[name], plan.dtype, plan.values(name)))
                plan.forget()
                done += plan.tensor_bytes(name)
                if progress:
                    progress("converting", done, plan.tensors_bytes)
        digests[file] = writer.digest.hexdigest()
    weights = {file: plan.announced(names) for file, names in shards.items()}
    self_check(directory, digests, weights, progress)
    (directory / MANIFEST).write_bytes(manifest(directory, digests, fingerprint))
