"""A model of any known source made into a Hugging Face directory, all of it or nothing."""

import contextlib
import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swiftchat.errors import FileSystemError, ModelNotFound, UsageError
from swiftchat.weights.architectures.config import DTYPES
from swiftchat.weights.convert.layout import Layout, by_rank, in_shards
from swiftchat.weights.convert.manifest import MANIFEST, manifest, self_check
from swiftchat.weights.files.disk import (
    Progress,
    as_file_system_error,
    atomic_directory,
    require_space,
)
from swiftchat.weights.files.lock import exclusive_lock
from swiftchat.weights.formats.safetensors import (
    create_safetensors,
    header_bytes,
    read_header,
    spec_bytes,
)
from swiftchat.weights.formats.weight_files import SAFETENSORS_INDEX
from swiftchat.weights.quantization.quantize import QuantizationSpec
from swiftchat.weights.sources.detect import plan_of
from swiftchat.weights.sources.plan import Plan, json_bytes

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
    tp: int = 1,
    quantization: QuantizationSpec | None = None,
    progress: Progress | None = None,
    generation_defaults: Mapping[str, Any] | None = None,
    packed: bool = False,
) -> None:
    """Write the model of `source` (see `plan_of`) as a new directory.

    `dtype` None keeps a uniform source's own and takes bfloat16 for quantized weights. Numbers
    are rounded to the nearest, ties to even. `only` and `skip` are patterns of Hugging Face's
    tensor names. `generation_defaults` go into `generation_config.json` where the source says
    nothing of its own. With `tp` not 1 the weights are cut for so many ranks, a file for each,
    which only this program reads and only with so many ranks. `quantization` is done to the
    matrices of the layers; their factors have `dtype`, as all the rest. With `packed` matrices of
    a GGUF file stay in its blocks where the engine computes with them so (`gguf_packed`).

    The directory appears under its name when it is whole, has been read back and agrees with
    what was written; after any failure or interrupt nothing of it is left. Of two processes
    converting the same source to one destination, one works and the other waits for it.

    Raises `FileSystemError` when `destination` exists, the disk is full or cannot be written;
    `BadModelFile` when the source is damaged or a number does not fit `dtype`; `UsageError`
    for an unknown dtype, patterns that match nothing and ranks that cannot share the model.
    """
    if destination.exists():
        raise FileSystemError(f"{destination} exists already", "choose another name or remove it")
    plan = _planned(source, dtype, only, skip, quantization, packed)
    destination = Path(os.path.abspath(destination))  # noqa: PTH100 - resolve() would follow links
    if generation_defaults:
        plan = plan.with_generation_defaults(generation_defaults)
    layout = _layout(plan, shard_size_bytes, tp)
    total_bytes = layout.tensors_bytes + sum(map(len, plan.files.values()))

    def waiting() -> None:
        if progress:
            progress("waiting for another process", 0, total_bytes)

    with as_file_system_error(destination, total_bytes):
        fingerprint = _fingerprint(plan, tp)
        destination.parent.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(destination, waiting):
            if destination.exists():
                if _fingerprint_of(destination) == fingerprint:
                    return
                raise FileSystemError(f"{destination} was made meanwhile from something else")
            require_space(destination, total_bytes)
            with atomic_directory(destination) as directory:
                _write(plan, layout, directory, fingerprint, progress)


def outline(
    source: Path,
    *,
    dtype: str | None = None,
    shard_size_bytes: float = _DEFAULT_SHARD_BYTES,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    tp: int = 1,
    quantization: QuantizationSpec | None = None,
) -> Outline:
    """What `convert` would write with these arguments; raises what it raises before it writes."""
    plan = _planned(source, dtype, only, skip, quantization)
    layout, fingerprint = _layout(plan, shard_size_bytes, tp), _fingerprint(plan, tp)
    files = {name: len(content) for name, content in _small_files(plan, layout).items()}
    for file, tensors in layout.files.items():
        header = header_bytes(tensors, _metadata(layout, file, fingerprint))
        files[file] = len(header) + sum(map(spec_bytes, tensors))
    return Outline(files, sum(map(len, layout.files.values())), plan.dtype, _peak_bytes(plan, tp))


def _peak_bytes(plan: Plan, tp: int) -> int:
    # The widest dtype a source has is float32; its pages count while they are read. Parts of
    # columns are brought together before they are written.
    largest_bytes = max(map(plan.tensor_bytes, plan.shapes))
    copies = (1 if plan.dtype == "float32" else 2) + (tp != 1)
    # What is quantized is there as float32, its pages too, and as a byte for each number.
    numbers = max((math.prod(plan.shapes[name]) for name in plan.quantized), default=0)
    return max(largest_bytes * (1 + copies), 10 * numbers) + _STANDING_BYTES


def _planned(
    source: Path,
    dtype: str | None,
    only: Sequence[str],
    skip: Sequence[str],
    quantization: QuantizationSpec | None,
    packed: bool = False,
) -> Plan:
    if dtype is not None and dtype not in DTYPES:
        raise UsageError(f"unknown dtype {dtype!r}", f"one of {', '.join(DTYPES)}")
    if not source.exists():
        raise ModelNotFound(f"no model at {source}")
    plan = plan_of(source, dtype, packed=packed)
    if only or skip:
        plan = plan.selected(only, skip)
    return plan if quantization is None else plan.quantized_as(quantization)


def _layout(plan: Plan, shard_size_bytes: float, tp: int) -> Layout:
    return in_shards(plan, shard_size_bytes) if tp == 1 else by_rank(plan, tp)


def _small_files(plan: Plan, layout: Layout) -> Mapping[str, bytes]:
    return {**plan.files, **({SAFETENSORS_INDEX: layout.index} if layout.index else {})}


def _fingerprint(plan: Plan, tp: int) -> str:
    """A name for source, dtype, tensors and ranks: sizes and both ends of the files, hashed."""
    digest = hashlib.sha256(plan.dtype.encode())
    if plan.quantization is not None or plan.packed:
        digest.update(plan.files["config.json"])
        if plan.quantization is not None and plan.quantization.is_calibrated:
            digest.update(b"calibrated")
    if tp != 1:
        digest.update(f"tp {tp}".encode())
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


def _metadata(layout: Layout, file: str, fingerprint: str) -> dict[str, str]:
    return {"format": "pt", "swiftchat_source": fingerprint, **layout.metadata[file]}


def _write(
    plan: Plan, layout: Layout, directory: Path, fingerprint: str, progress: Progress | None
) -> None:
    digests = {}
    for name, content in _small_files(plan, layout).items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(content)
        digests[name] = hashlib.sha256(content).hexdigest()
    done = 0
    with contextlib.ExitStack() as stack:
        # All at once: of a tensor that is decoded several files may get a part.
        writers = {
            file: stack.enter_context(
                create_safetensors(directory / file, tensors, _metadata(layout, file, fingerprint))
            )
            for file, tensors in layout.files.items()
        }
        for name in plan.shapes:
            for stored, tensor in plan.arrays(name):
                for file, piece in layout.pieces(stored, tensor):
                    writers[file].write(stored, piece)
            plan.release_pages()
            done += plan.tensor_bytes(name)
            if progress:
                progress("converting", done, plan.tensors_bytes)
    digests |= {file: writer.digest.hexdigest() for file, writer in writers.items()}
    self_check(directory, digests, layout.files, progress)
    (directory / MANIFEST).write_bytes(manifest(directory, digests, fingerprint, layout.tp))
