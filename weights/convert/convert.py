"""Conversion of a model source to a Hugging Face directory, atomically."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from swiftchat.errors import FileSystemError, ModelNotFound, UsageError
from swiftchat.weights.adapters.merge import merge_adapters
from swiftchat.weights.architectures.parts.fields import DTYPES
from swiftchat.weights.convert.conversion import DEFAULT_SHARD_BYTES, Conversion
from swiftchat.weights.files.disk import (
    Progress,
    as_file_system_error,
    atomic_directory,
    require_space,
)
from swiftchat.weights.files.lock import exclusive_lock
from swiftchat.weights.formats.safetensors import read_header
from swiftchat.weights.quantization.quantize import QuantizationSpec
from swiftchat.weights.sources.detect import plan_conversion
from swiftchat.weights.sources.plan import Plan


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
    shard_size_bytes: float = DEFAULT_SHARD_BYTES,
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
    conversion = Conversion.of(plan, shard_size_bytes, tp)
    destination = Path(os.path.abspath(destination))  # noqa: PTH100 - resolve() would follow links
    total_bytes = conversion.total_bytes

    def report_waiting() -> None:
        if progress:
            progress("waiting for another process", 0, total_bytes)

    with as_file_system_error(destination, total_bytes):
        fingerprint = conversion.fingerprint
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
                conversion.write(directory, progress)


def estimate_conversion(
    source: Path,
    *,
    dtype: str | None = None,
    shard_size_bytes: float = DEFAULT_SHARD_BYTES,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    tp: int = 1,
    quantization: QuantizationSpec | None = None,
    adapters: Sequence[tuple[Path, float]] = (),
) -> ConversionEstimate:
    """Estimate the output of `convert` with these arguments; raises its errors before writing."""
    plan = _plan(source, dtype, only, skip, quantization, adapters)
    conversion = Conversion.of(plan, shard_size_bytes, tp)
    return ConversionEstimate(
        conversion.file_bytes(), conversion.num_tensors, plan.dtype, conversion.peak_bytes
    )


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


def _read_fingerprint(destination: Path) -> str | None:
    """Return the fingerprint in the first weight file of an earlier conversion."""
    for path in sorted(destination.glob("*.safetensors")):
        return read_header(path)[1].get("swiftchat_source")
    return None
