"""Conversion of a model source to a Hugging Face directory, atomically."""

import contextlib
import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from swiftchat.errors import FileSystemError, ModelNotFound, UsageError
from swiftchat.errors.regular_file import open_regular
from swiftchat.weights.adapters.merge import merge_adapters
from swiftchat.weights.architectures.parts.fields import DTYPES
from swiftchat.weights.convert.layout import Layout, rank_layout, sharded_layout
from swiftchat.weights.convert.manifest import MANIFEST, encode_manifest, verify_files
from swiftchat.weights.files.disk import (
    Progress,
    as_file_system_error,
    atomic_directory,
    require_space,
)
from swiftchat.weights.files.lock import exclusive_lock
from swiftchat.weights.files.reading import encode_json
from swiftchat.weights.formats.safetensors import (
    create_safetensors,
    header_bytes,
    read_header,
    spec_bytes,
)
from swiftchat.weights.formats.weight_files import SAFETENSORS_INDEX
from swiftchat.weights.quantization.quantize import QuantizationSpec
from swiftchat.weights.sources.detect import plan_conversion
from swiftchat.weights.sources.plan import Plan

_SAMPLE_BYTES = 1 << 20
_DEFAULT_SHARD_BYTES = 5e9
# Interpreter, numpy, tensor tables and chunk buffers.
_BASE_BYTES = 128_000_000


@dataclass(frozen=True)
class ConversionEstimate:
    """The output of a conversion: bytes by file, without the manifest, and the memory needed.

    `peak_bytes` is an upper bound of the memory in use, mapped files included.
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
    adapters: Sequence[tuple[Path, float]] = (),
    progress: Progress | None = None,
) -> None:
    """Write the model of `source` (see `plan_conversion`) as a new directory.

    `dtype` None keeps the source's own, or bfloat16 for quantized weights; rounding is to
    nearest, ties to even. `only` and `skip` are patterns of Hugging Face tensor names. `tp` ranks
    get one file each, which only this program reads. `quantization` applies to the matrices of
    the layers. `adapters`, with their scales, are merged before that.

    The directory appears when it is complete, has been read back, and the safetensors library has
    found in each weight file what was written; a failure or interrupt leaves nothing. A second
    process converting the same source waits for the first.

    Raises `FileSystemError` if `destination` exists or cannot be written, `BadModelFile` if the
    source is damaged or an element does not fit `dtype`, `UsageError` for invalid options.
    """
    if destination.exists():
        raise FileSystemError(f"{destination} exists already", "choose another name or remove it")
    plan = _plan(source, dtype, only, skip, quantization, adapters)
    destination = Path(os.path.abspath(destination))  # noqa: PTH100 - resolve() would follow links
    layout = _layout(plan, shard_size_bytes, tp)
    total_bytes = layout.tensors_bytes + sum(map(len, plan.files.values()))

    def report_waiting() -> None:
        if progress:
            progress("waiting for another process", 0, total_bytes)

    with as_file_system_error(destination, total_bytes):
        fingerprint = _fingerprint(plan, tp)
        destination.parent.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(destination, report_waiting):
            if destination.exists():
                if _read_fingerprint(destination) == fingerprint:
                    return
                raise FileSystemError(
                    f"{destination} was meanwhile created from another source or with other options"
                )
            require_space(destination, total_bytes)
            with atomic_directory(destination) as directory:
                _write(plan, layout, directory, fingerprint, progress)


def estimate_conversion(
    source: Path,
    *,
    dtype: str | None = None,
    shard_size_bytes: float = _DEFAULT_SHARD_BYTES,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    tp: int = 1,
    quantization: QuantizationSpec | None = None,
    adapters: Sequence[tuple[Path, float]] = (),
) -> ConversionEstimate:
    """Estimate the output of `convert` with these arguments; raises its errors before writing."""
    plan = _plan(source, dtype, only, skip, quantization, adapters)
    layout, fingerprint = _layout(plan, shard_size_bytes, tp), _fingerprint(plan, tp)
    files = {name: len(content) for name, content in _small_files(plan, layout).items()}
    for file, tensors in layout.files.items():
        header = header_bytes(tensors, _metadata(layout, file, fingerprint))
        files[file] = len(header) + sum(map(spec_bytes, tensors))
    num_tensors = sum(map(len, layout.files.values()))
    return ConversionEstimate(files, num_tensors, plan.dtype, _peak_bytes(plan, tp))


def _peak_bytes(plan: Plan, tp: int) -> int:
    # Sources have at most float32, and their pages count while they are read. Column slices of
    # ranks are copied before they are written.
    largest_bytes = max(map(plan.tensor_bytes, plan.shapes))
    copies = (1 if plan.dtype == "float32" else 2) + (tp != 1)
    # A matrix being quantized is in memory as pages, as float32 and as one byte per value.
    elements = max((math.prod(plan.shapes[name]) for name in plan.quantized), default=0)
    return max(largest_bytes * (1 + copies), 10 * elements) + _BASE_BYTES


def _plan(
    source: Path,
    dtype: str | None,
    only: Sequence[str],
    skip: Sequence[str],
    quantization: QuantizationSpec | None,
    adapters: Sequence[tuple[Path, float]],
) -> Plan:
    if dtype is not None and dtype not in DTYPES:
        raise UsageError(f"unknown dtype {dtype!r}", f"one of {', '.join(DTYPES)}")
    if not source.exists():
        raise ModelNotFound(f"no model at {source}")
    plan = plan_conversion(source, dtype).with_constants()
    if adapters:
        plan = merge_adapters(plan, adapters)
    if only or skip:
        plan = plan.select(only, skip)
    return plan if quantization is None else plan.quantize(quantization)


def _layout(plan: Plan, shard_size_bytes: float, tp: int) -> Layout:
    """Return the files to write. Raises `UsageError` if they could not hold the model."""
    if tp < 1 or shard_size_bytes < 1:
        raise UsageError(f"{tp} ranks with files of {shard_size_bytes} bytes cannot hold a model")
    return sharded_layout(plan, shard_size_bytes) if tp == 1 else rank_layout(plan, tp)


def _small_files(plan: Plan, layout: Layout) -> Mapping[str, bytes]:
    return {**plan.files, **({SAFETENSORS_INDEX: layout.index} if layout.index else {})}


def _fingerprint(plan: Plan, tp: int) -> str:
    """Return a hash of source, dtype, tensors and ranks, from sizes and both ends of the files."""
    digest = hashlib.sha256(plan.dtype.encode())
    if plan.quantization is not None:
        digest.update(plan.files["config.json"])
        if plan.quantization.is_calibrated:
            digest.update(b"calibrated")
    if tp != 1:
        digest.update(f"tp {tp}".encode())
    digest.update(encode_json(dict(plan.shapes)) + plan.fingerprint.encode())
    for path in plan.source_files:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            digest.update(size.to_bytes(8, "little"))
            digest.update(file.read(_SAMPLE_BYTES))
            file.seek(max(0, size - _SAMPLE_BYTES))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _read_fingerprint(destination: Path) -> str | None:
    """Return the fingerprint in the first weight file of an earlier conversion."""
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
        # All files are open at once: each tensor is dequantized once for all ranks.
        writers = {
            file: stack.enter_context(
                create_safetensors(directory / file, tensors, _metadata(layout, file, fingerprint))
            )
            for file, tensors in layout.files.items()
        }
        for name in plan.shapes:
            for stored_name, array in plan.read(name):
                for file, part in layout.split(stored_name, array):
                    writers[file].write(stored_name, part)
            plan.release_pages()
            done += plan.tensor_bytes(name)
            if progress:
                progress("converting", done, plan.tensors_bytes)
    digests |= {file: writer.digest.hexdigest() for file, writer in writers.items()}
    verify_files(directory, digests, progress)
    manifest = encode_manifest(directory, digests, fingerprint, layout.tp)
    (directory / MANIFEST).write_bytes(manifest)
