"""The commands about models: download, convert, list, show, rm."""

import json as json_module
import re
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from swiftchat.chat.model.description import describe, fact_text, label, size
from swiftchat.chat.model.find import hub_token
from swiftchat.chat.options.completion import (
    complete_downloads,
    complete_models,
    complete_stored_models,
)
from swiftchat.chat.terminal.progress import progress_display
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.errors import UsageError

if TYPE_CHECKING:
    from swiftchat.weights.convert.convert import Outline
    from swiftchat.weights.download import Offer


@click.command()
@click.argument("name", default="", shell_complete=complete_downloads)
@click.option("--revision", help="Branch, tag or commit on the hub.")
@click.option("--include", multiple=True, help="Also files of this pattern.")
@click.option("--exclude", multiple=True, help="No files of this pattern.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def download(
    name: str,
    revision: str | None,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    yes: bool,
    quiet: bool,
) -> None:
    """Download a model: OWNER/NAME of the Hugging Face hub, or a short name like qwen3:8b.

    Without NAME it is SmolLM2-135M-Instruct. Size and license are shown first; at a terminal it
    asks whether to go on. An interrupted download goes on where it was when it is run again, and
    every file is checked. HF_TOKEN is used where a model asks for one.
    """
    from swiftchat.weights import download as module
    from swiftchat.weights.store import default_store

    found = module.offer(
        name or module.DEFAULT_MODEL,
        default_store(),
        revision=revision,
        include=include,
        exclude=exclude,
        token=hub_token(),
    )
    if not quiet:
        print(sanitize(_offered(name, found)), file=sys.stderr)
    if found.missing_bytes and not yes and sys.stdin.isatty() and sys.stderr.isatty():
        click.confirm(f"download {sanitize(found.repo)}?", default=True, abort=True, err=True)
    with progress_display(quiet) as progress:
        path = found.bring(progress)
    print(sanitize(str(path)))


def _offered(name: str, found: "Offer") -> str:
    """One line about what is going to be downloaded."""
    title = found.repo if name.lower() in ("", found.repo.lower()) else f"{name} is {found.repo}"
    to_come = ""
    if not found.missing_bytes:
        to_come = ", already here"
    elif found.missing_bytes < found.size_bytes:
        to_come = f", {size(found.missing_bytes)} still to come"
    return f"{title}: {size(found.size_bytes)}{to_come}, license {found.license or 'not stated'}"


@click.command()
@click.argument("source", type=click.Path())
@click.argument("destination", type=click.Path())
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float16", "float32"]),
    help="Of what is written; default: bfloat16 for GGUF, else as it is.",
)
@click.option(
    "--shard-size", default="5GB", show_default=True, help="Largest weight file, as 500MB or 5GB."
)
@click.option("--only", multiple=True, help="Only tensors of this pattern of names.")
@click.option("--skip", multiple=True, help="No tensors of this pattern of names.")
@click.option(
    "--tp",
    type=int,
    default=1,
    metavar="N",
    help="Cut for N GPUs, a file for each; runs with this --tp only.",
)
@click.option(
    "--quantize",
    type=click.Choice(["int8", "int4", "fp8", "w8a8-int8", "w8a8-fp8"]),
    help="Round the layers' matrices to this form; w8a8: their inputs too.",
)
@click.option(
    "--group-size",
    type=click.Choice(["32", "64", "128"]),
    default="32",
    show_default=True,
    help="Columns of int4 that share a factor.",
)
@click.option(
    "--keep",
    multiple=True,
    metavar="PATTERN",
    help="Do not quantize tensors of this pattern of names.",
)
@click.option(
    "--int8",
    multiple=True,
    metavar="PATTERN",
    help="Round these to int8 instead, as lm_head.weight.",
)
@click.option(
    "--calibrate", is_flag=True, help="Round by what the model does to a text: slower, better."
)
@click.option("--dry-run", is_flag=True, help="Say what would be written, and write nothing.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def convert(
    source: str,
    destination: str,
    dtype: str | None,
    shard_size: str,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    tp: int,
    quantize: str | None,
    group_size: str,
    keep: tuple[str, ...],
    int8: tuple[str, ...],
    calibrate: bool,
    dry_run: bool,
    quiet: bool,
) -> None:
    """Convert a model to a Hugging Face directory.

    SOURCE is a GGUF file (of several, the first), a directory with safetensors or .bin files,
    Meta's with consolidated.*.pth, or Megatron-LM's, or a model's name as `list` shows it. Nothing
    stands under DESTINATION until everything is written and read back. Without --tp the result
    serves any number of GPUs.
    """
    from swiftchat.weights.convert.convert import convert as convert_model
    from swiftchat.weights.convert.convert import outline
    from swiftchat.weights.quantization.quantize import W8A8, QuantizationSpec
    from swiftchat.weights.store import default_store

    if keep and quantize is None:
        raise UsageError("--keep says what --quantize leaves alone", "add --quantize")
    if int8 and quantize is None:
        raise UsageError("--int8 says what --quantize rounds otherwise", "add --quantize")
    if calibrate and quantize is None:
        raise UsageError("--calibrate says how --quantize rounds", "add --quantize")
    quantization = (
        QuantizationSpec(quantize, int(group_size), keep, int8=int8) if quantize else None
    )
    path, shard_size_bytes = Path(source), bytes_of(shard_size)
    if not path.exists():
        path = default_store().find(source)
    if dry_run:
        planned = outline(
            path,
            dtype=dtype,
            shard_size_bytes=shard_size_bytes,
            only=only,
            skip=skip,
            tp=tp,
            quantization=quantization,
        )
        _print_outline(planned)
        return
    start = time.monotonic()
    with progress_display(quiet) as progress, ExitStack() as stack:
        if calibrate and quantization is not None:
            from swiftchat.chat.subcommands.calibration import input_statistics

            if quantize in W8A8:
                largest = stack.enter_context(input_statistics(path, 1, progress))
                quantization = replace(quantization, abs_maxima=largest)
            else:
                moments = stack.enter_context(input_statistics(path, 2, progress))
                quantization = replace(quantization, second_moments=moments)
        convert_model(
            path,
            Path(destination),
            dtype=dtype,
            shard_size_bytes=shard_size_bytes,
            only=only,
            skip=skip,
            tp=tp,
            quantization=quantization,
            progress=progress,
        )
    if not quiet:
        written = sum(file.stat().st_size for file in Path(destination).rglob("*"))
        seconds = time.monotonic() - start
        print(
            f"{size(written)} in {seconds:.1f} s ({size(written / seconds)}/s), read back "
            "and right",
            file=sys.stderr,
        )
    print(sanitize(destination))


def _print_outline(planned: "Outline") -> None:
    for name, num_bytes in sorted(planned.files.items()):
        print(f"{size(num_bytes):>9}  {sanitize(name)}")
    print(
        f"{size(sum(planned.files.values())):>9}  in all: {planned.num_tensors} tensors of "
        f"{planned.dtype}; memory needed: at most {size(planned.peak_bytes)}"
    )


@click.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def list_models(as_json: bool) -> None:
    """List the models on this machine; SHORT is a short name that works wherever NAME does."""
    from swiftchat.weights.hub.aliases import alias_of
    from swiftchat.weights.store import default_store

    models = default_store().list()
    if as_json:
        rows = [
            {
                "name": m.name,
                "alias": alias_of(m.name),
                "path": str(m.path),
                "size_bytes": m.size_bytes,
                "modified": m.modified,
                "source": m.source,
            }
            for m in models
        ]
        print(json_module.dumps(rows, indent=2))
        return
    if not models:
        print("no models yet; try: swiftchat download", file=sys.stderr)
        return
    width = max(len(model.name) for model in models)
    print(f"{'NAME':{width}}  {'SIZE':>9}  {'MODIFIED':16}  SOURCE  SHORT")
    for model in models:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(model.modified))
        print(
            f"{sanitize(model.name):{width}}  {size(model.size_bytes):>9}  {when:16}  "
            f"{model.source:6}  {alias_of(model.name) or '–'}"
        )


@click.command()
@click.argument("name", default="", shell_complete=complete_models)
@click.option("--tp", type=int, metavar="N", help="Memory of each of N GPUs; default: all choices.")
@click.option(
    "--pp",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    help="Memory of each GPU of N stages with some of the layers each.",
)
@click.option(
    "--kv-dtype",
    type=click.Choice(["auto", "int8", "fp8"]),
    default="auto",
    help="Memory with keys and values kept in this.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def show(name: str, tp: int | None, pp: int, kv_dtype: str, as_json: bool) -> None:
    """Show what a model is: family, sizes, context, tokenizer, memory needed, where it fits."""
    from swiftchat.chat.model.memory import fits, fits_divided, places
    from swiftchat.tokenizer import Tokenizer
    from swiftchat.weights.hub.aliases import DEFAULT_MODEL
    from swiftchat.weights.model.directory import Model
    from swiftchat.weights.store import default_store

    path = default_store().resolve(name or DEFAULT_MODEL)
    model = Model.open(path)
    facts = describe(model, Tokenizer.load(path), kv_dtype)
    cpu, *gpus = places()
    facts["fits"] = fits(model, cpu, gpus, kv_dtype)
    facts["each_of_several_gpus"] = fits_divided(model, gpus, tp, pp, kv_dtype)
    if as_json:
        print(json_module.dumps(facts, indent=2))
        return
    width = max(map(len, facts))
    for key, value in facts.items():
        first, *more = fact_text(key, value).splitlines() or [""]
        print(f"{label(key):{width}}  {first}")
        for line in more:
            print(f"{'':{width}}  {line}")


@click.command()
@click.argument("name", shell_complete=complete_stored_models)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def rm(name: str, yes: bool) -> None:
    """Remove a model from this machine."""
    from swiftchat.weights.store import default_store

    store = default_store()
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("rm asks first, and stdin is no terminal", "use -y")
        click.confirm(f"remove {sanitize(name)}?", abort=True, err=True)
    removed = store.remove(name)
    print(f"removed {sanitize(removed.name)} ({size(removed.size_bytes)})", file=sys.stderr)


def bytes_of(text: str) -> float:
    """The bytes that "500MB" or "5GB" means; `UsageError` for anything else."""
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?) ?([kMGT]?)B?", text)
    num_bytes = float(found[1]) * 1000.0 ** " kMGT".index(found[2] or " ") if found else 0.0
    if not num_bytes:
        raise UsageError(f"{text!r} is no size", "as 500MB or 5GB")
    return num_bytes
