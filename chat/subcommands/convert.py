"""`swiftchat convert`: convert and quantize a model."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from swiftchat.chat.model.adapters import Weighted
from swiftchat.chat.options.option_types import MAX_RANKS, UserPath, Whole
from swiftchat.chat.options.size import Size
from swiftchat.chat.terminal.amounts import format_bytes
from swiftchat.chat.terminal.output import print_notice
from swiftchat.chat.terminal.progress import progress_display
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.errors import UsageError
from swiftchat.weights.files.paths import user_path

if TYPE_CHECKING:
    from swiftchat.weights.convert.convert import ConversionEstimate
    from swiftchat.weights.files.disk import Progress
    from swiftchat.weights.quantization.quantize import QuantizationSpec


@click.command()
@click.argument("source", type=UserPath())
@click.argument("destination", type=UserPath())
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float16", "float32"]),
    help="Data type of the result; default: bfloat16 for GGUF, otherwise that of SOURCE.",
)
@click.option(
    "--shard-size",
    type=Size(is_positive=True),
    default="5GB",
    show_default=True,
    help="Largest size of a weight file, such as 500MB or 5GB.",
)
@click.option("--only", multiple=True, help="Include only tensors whose names match this pattern.")
@click.option("--skip", multiple=True, help="Exclude tensors whose names match this pattern.")
@click.option(
    "--tp",
    type=Whole(1, MAX_RANKS),
    default=1,
    metavar="N",
    help="Shard for N GPUs, one file each; the result runs with this --tp only.",
)
@click.option(
    "--quantize",
    type=click.Choice(
        ["int8", "int4", "fp8", "fp8-block", "mxfp4", "nvfp4", "w8a8-int8", "w8a8-fp8"]
    ),
    help="Quantize the layers' matrices; w8a8 also quantizes their inputs.",
)
@click.option(
    "--group-size",
    type=click.Choice(["32", "64", "128"]),
    default="32",
    show_default=True,
    help="Columns per scale and zero point of int4.",
)
@click.option(
    "--keep",
    multiple=True,
    metavar="PATTERN",
    help="Do not quantize tensors whose names match this pattern.",
)
@click.option(
    "--int8",
    multiple=True,
    metavar="PATTERN",
    help="Quantize these tensors to int8 instead, such as lm_head.weight.",
)
@click.option(
    "--calibrate",
    is_flag=True,
    help="Calibrate on a built-in text (GPTQ, SmoothQuant): slower, more accurate.",
)
@click.option(
    "--merge-lora",
    multiple=True,
    metavar="DIR[=SCALE]",
    help="Add a LoRA adapter to the weights (repeatable).",
)
@click.option("--dry-run", is_flag=True, help="Print the files and sizes; write nothing.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
def convert(
    source: str,
    destination: str,
    dtype: str | None,
    shard_size: int,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    tp: int,
    quantize: str | None,
    group_size: str,
    keep: tuple[str, ...],
    int8: tuple[str, ...],
    calibrate: bool,
    merge_lora: tuple[str, ...],
    dry_run: bool,
    quiet: bool,
) -> None:
    """Convert a model to a Hugging Face directory.

    SOURCE is a GGUF file (the first one, if there are several), a directory with safetensors or
    .bin files, Meta's consolidated.*.pth or Megatron-LM's files, or the name of a model in
    `swiftchat list`. DESTINATION appears only after all files are written and verified. Without
    --tp the result runs on any number of GPUs.
    """
    from swiftchat.weights.convert.convert import convert as convert_model
    from swiftchat.weights.convert.convert import estimate_conversion
    from swiftchat.weights.quantization.quantize import QuantizationSpec
    from swiftchat.weights.store import default_store

    if merge_lora and calibrate:
        raise UsageError(
            "--calibrate measures the model without --merge-lora",
            "merge first, then quantize the result",
        )
    for flag, value in (("--keep", keep), ("--int8", int8), ("--calibrate", calibrate)):
        if value and quantize is None:
            raise UsageError(f"{flag} has no effect without --quantize", "add --quantize")
    spec = QuantizationSpec(quantize, int(group_size), keep, int8=int8) if quantize else None
    options: dict[str, Any] = {
        "dtype": dtype,
        "shard_size_bytes": shard_size,
        "only": only,
        "skip": skip,
        "tp": tp,
        "adapters": [(user_path(one.text), one.scale) for one in map(Weighted.parse, merge_lora)],
    }
    path = Path(source)
    if not path.exists():
        path = default_store().find(source)
    if dry_run:
        _print_estimate(estimate_conversion(path, quantization=spec, **options))
        return
    start = time.monotonic()
    with progress_display(quiet) as progress, _calibrated(spec, path, calibrate, progress) as spec:
        convert_model(path, Path(destination), quantization=spec, progress=progress, **options)
    if not quiet:
        _print_summary(Path(destination), time.monotonic() - start)
    print(sanitize(destination))


@contextmanager
def _calibrated(
    spec: "QuantizationSpec | None", source: Path, calibrate: bool, progress: "Progress"
) -> "Iterator[QuantizationSpec | None]":
    """Add the calibration statistics of `source` to a quantization, if `calibrate` is true."""
    if spec is None or not calibrate:
        yield spec
        return
    from swiftchat.chat.subcommands.calibration import input_statistics
    from swiftchat.weights.quantization.quantize import W8A8

    is_w8a8 = spec.scheme in W8A8
    with input_statistics(source, 1 if is_w8a8 else 2, progress) as statistics:
        if is_w8a8:
            yield replace(spec, abs_maxima=statistics)
        else:
            yield replace(spec, second_moments=statistics)


def _print_estimate(planned: "ConversionEstimate") -> None:
    for name, num_bytes in sorted(planned.files.items()):
        print(f"{format_bytes(num_bytes):>9}  {sanitize(name)}")
    print(
        f"{format_bytes(sum(planned.files.values())):>9}  in total: {planned.num_tensors} tensors "
        f"of {planned.dtype}; memory needed: at most {format_bytes(planned.peak_bytes)}"
    )


def _print_summary(destination: Path, seconds: float) -> None:
    num_bytes = sum(file.stat().st_size for file in destination.rglob("*"))
    size, speed = format_bytes(num_bytes), format_bytes(num_bytes / seconds)
    print_notice(f"wrote and verified {size} in {seconds:.1f} s ({speed}/s)")
