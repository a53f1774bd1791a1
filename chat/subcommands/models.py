"""Subcommands for stored models: download, list, show, rm."""

import json as json_module
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from swiftchat.chat.history.listing import Column, format_time, print_table
from swiftchat.chat.model.description import describe, property_label, property_text
from swiftchat.chat.model.find import hub_token
from swiftchat.chat.options.completion import (
    complete_downloads,
    complete_models,
    complete_removable,
)
from swiftchat.chat.options.option_types import MAX_RANKS, Whole
from swiftchat.chat.terminal.amounts import format_bytes
from swiftchat.chat.terminal.output import print_line, print_notice
from swiftchat.chat.terminal.progress import download_display
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.engine.api.kv_folder import KVFolder, user_kv_folder
from swiftchat.errors import UsageError
from swiftchat.weights.files.disk import require_space
from swiftchat.weights.files.paths import user_path
from swiftchat.weights.hub.known_models import DEFAULT_MODEL, short_name_of, sources_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from swiftchat.weights.download import DownloadPlan
    from swiftchat.weights.hub.cached_models import StoredModel

_KV_ROOM = 1.1  # times the weights: room for a context

_COLUMNS = (
    Column("NAME"),
    Column("TYPE", left_out=4),
    Column("SIZE", left_out=5),
    Column("USED", left_out=2),
    Column("SOURCE", left_out=1),
    Column("SHORT", left_out=3, is_shortened=True),
)


@click.command()
@click.argument("name", default="", shell_complete=complete_downloads)
@click.option("--revision", help="Branch, tag or commit on the hub.")
@click.option("--include", multiple=True, help="Also download files that match this pattern.")
@click.option("--exclude", multiple=True, help="Do not download files that match this pattern.")
@click.option("--with-images", is_flag=True, help="Also download the vision part (mmproj).")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
def download(
    name: str,
    revision: str | None,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    with_images: bool,
    yes: bool,
    quiet: bool,
) -> None:
    """Download a model: OWNER/NAME on the Hugging Face hub, or a short name such as qwen3:8b.

    Of a repository of GGUF files, OWNER/NAME:TYPE brings those of one type, such as Q4_K_M, and is
    the name of the installed model. Without TYPE you are asked on a terminal; elsewhere it is
    Q4_K_M, or a type near it. OWNER/NAME:4bit and :8bit quantize the weights while they are
    downloaded, unless the repository has GGUF files of that size. Addresses of the hub and of a
    file there work too. Images do not run here yet: the vision part of GGUF files is left out,
    except --with-images, for other programs. NAME defaults to SmolLM2-135M-Instruct. Size and
    license are printed first; on a terminal you are asked to confirm. Run the command again to
    resume an interrupted download. Every file is verified. Gated models need the environment
    variable HF_TOKEN.
    """
    plan = _agreed_plan(
        name or DEFAULT_MODEL,
        yes,
        quiet,
        revision=revision,
        include=include,
        exclude=exclude,
        with_images=with_images,
    )
    with download_display(quiet) as progress:
        path = plan.run(progress)
    print(sanitize(str(path)))


def download_agreed(name: str, *, yes: bool) -> str:
    """Download a model after a question in a terminal; return the name of the installed model."""
    plan = _agreed_plan(name, yes)
    with download_display() as progress:
        plan.run(progress)
    return name if sources_of(name) else plan.repo


def _agreed_plan(name: str, yes: bool, quiet: bool = False, **wanted: Any) -> "DownloadPlan":
    """Plan a download, print it, and ask once in a terminal: for the type of files, or whether.

    `wanted` are arguments of `plan_download`.
    """
    from swiftchat.weights.download import plan_download
    from swiftchat.weights.hub.names import runs, usual_type
    from swiftchat.weights.store import default_store

    is_asking = not yes and sys.stdin.isatty() and sys.stderr.isatty()
    typed: list[str] = []

    def choose(repo: str, sizes: "Mapping[str, int]") -> str:
        if not is_asking:
            return usual_type(sizes)
        typed.append(_asked_type(repo, sizes))
        return typed[0]

    store = default_store()
    plan = plan_download(name, store, token=hub_token(), choose=choose, **wanted)
    if not quiet:
        print_notice(_offered(name, plan))
    if plan.starts_again:
        print_notice(f"{plan.repo} has changed on the hub: the download starts again")
    if not runs(kind := plan.repo.partition(":")[2]):
        print_notice(f"warning: files of type {kind} do not run here; see swiftchat help models")
    require_space(plan.folder, plan.needed_bytes)
    if plan.missing_bytes and is_asking and not typed:
        click.confirm(f"download {sanitize(plan.repo)}?", default=True, abort=True, err=True)
    return plan


def _asked_type(repo: str, sizes: "Mapping[str, int]") -> str:
    """Return the type of GGUF files that the user chooses; the largest that fits is marked."""
    from swiftchat.chat.model.fit import room_bytes, usable_devices
    from swiftchat.weights.hub.names import matching_type, runs, usual_type

    room = room_bytes(usable_devices()[0])
    fitting = [kind for kind in sizes if runs(kind) and sizes[kind] * _KV_ROOM <= room]
    largest = max(fitting, key=lambda kind: sizes[kind], default=None)
    print_notice(f"{repo} has {len(sizes)} types of files:")
    for kind, size_bytes in sorted(sizes.items(), key=lambda item: item[1]):
        about = "  the largest that fits this machine" if kind == largest else ""
        about = about if runs(kind) else "  does not run"
        print_notice(f"  {kind:{max(map(len, sizes))}}  {format_bytes(size_bytes):>8}{about}")

    def checked(typed: str) -> str:
        found = matching_type(typed.strip(), sizes)
        if found is None:
            raise click.UsageError(f"one of {', '.join(sizes)}")
        return found

    usual = usual_type(sizes)
    proposed = usual if usual in fitting or largest is None else largest
    chosen: str = click.prompt("type", default=proposed, value_proc=checked, err=True)
    return chosen


def _offered(name: str, found: "DownloadPlan") -> str:
    """Return one line on name, size and license of a download."""
    repo = found.repo.lower()
    is_itself = name.lower() in (repo, repo.rpartition("/")[2])
    title = found.repo if is_itself else f"{name} is {found.repo}"
    missing = ""
    if not found.missing_bytes:
        missing = ", nothing to download" if found.source_bytes else ", already installed"
    elif found.missing_bytes < (found.source_bytes or found.size_bytes):
        missing = f", {format_bytes(found.missing_bytes)} still missing"
    size, license_name = format_bytes(found.size_bytes), found.license or "not stated"
    if found.source_bytes:
        size += f", quantized while {format_bytes(found.source_bytes)} are downloaded"
    return f"{title}: {size}{missing}, license {license_name}"


@click.command(name="list")
@click.option("-a", "--all", "with_cache", is_flag=True, help="Also list files made from models.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_models(with_cache: bool, as_json: bool) -> None:
    """List the installed models and their disk use; SHORT is a short name for NAME.

    USED is when the weights were last read, as far as the file system keeps that; TYPE has
    +images where the vision part of a model is stored with it.
    Files made from models are the tokenizers of GGUF files and converted models. They are in the
    cache folder, and `swiftchat rm NAME` deletes them.
    """
    from swiftchat.weights.store import default_store

    store = default_store()
    models, derived = store.list(), store.derived()
    shown = [*models, *(derived if with_cache else [])]
    if as_json:
        print(json_module.dumps(list(map(_as_json, shown)), indent=2))
        return
    if not models:
        print_notice("no models are installed; try: swiftchat download")
    if shown:
        print_table(_COLUMNS, map(_row, shown), is_aligned_in_pipes=True)
    if models or derived:
        print_line(_disk_use(models, derived, store.free_bytes()))


def _as_json(model: "StoredModel") -> dict[str, object]:
    return {
        "name": model.name,
        "alias": None if model.source == "cache" else short_name_of(model.name),
        "path": str(model.path),
        "size_bytes": model.size_bytes,
        "type": model.type,
        "image_parts": list(map(str, model.image_parts)),
        "modified": model.modified,
        "used": model.used,
        "source": model.source,
        "origin": None if model.origin is None else str(model.origin),
    }


def _row(model: "StoredModel") -> tuple[str, ...]:
    about = short_name_of(model.name) or "–"
    if model.source == "cache":
        about = "converted" if model.origin is None else f"of {model.origin}"
        about += "" if model.origin is None or model.origin.exists() else " (missing)"
    size, used = format_bytes(model.size_bytes), format_time(model.used)
    kind = f"{model.type or '–'}{'+images' if model.image_parts else ''}"
    return model.name, kind, size, used, model.source, about


def _disk_use(
    models: "Sequence[StoredModel]", derived: "Sequence[StoredModel]", free_bytes: int
) -> str:
    """Return one line on the disk space that is used and free."""
    from swiftchat.weights.hub.cached_models import disk_bytes

    used, made = disk_bytes(models), disk_bytes(derived)
    cached = f", {format_bytes(made)} made from models (list --all)" if derived else ""
    kept = sum(state.st_size for _, state in KVFolder(user_kv_folder()).files())
    cached += f", {format_bytes(kept)} in KV caches (swiftchat cache)" if kept else ""
    return f"{format_bytes(used)} in models{cached}; {format_bytes(free_bytes)} free"


@click.command()
@click.argument("name", default="", shell_complete=complete_models)
@click.option(
    "--tp",
    type=Whole(1, MAX_RANKS),
    metavar="N",
    help="Show memory per GPU for tensor parallel on N GPUs; default: all sizes.",
)
@click.option(
    "--pp",
    type=Whole(1, MAX_RANKS),
    default=1,
    metavar="N",
    help="Show memory per GPU for N pipeline stages.",
)
@click.option(
    "--kv-dtype",
    type=click.Choice(["auto", "int8", "fp8", "int5"]),
    default="auto",
    help="Show memory for this data type of the KV cache.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(name: str, tp: int | None, pp: int, kv_dtype: str, as_json: bool) -> None:
    """Show a model: architecture, sizes, context, tokenizer, memory needed, where it fits.

    NAME can also be the directory or GGUF file of an adapter.
    """
    from swiftchat.weights.adapters.describe import describe_adapter, is_adapter

    if name and is_adapter(user_path(name)):
        _print_properties(describe_adapter(user_path(name)), as_json)
        return
    from swiftchat.chat.model.memory import context_limits, device_memory, parallel_memory
    from swiftchat.tokenizer import Tokenizer
    from swiftchat.weights.model.directory import Model
    from swiftchat.weights.store import default_store

    path = default_store().resolve(name or DEFAULT_MODEL)
    model = Model.open(path)
    properties = describe(model, Tokenizer.load(path), kv_dtype)
    cpu, *gpus = device_memory()
    properties["fits"] = context_limits(model, cpu, gpus, kv_dtype)
    properties["each_of_several_gpus"] = parallel_memory(model, gpus, tp, pp, kv_dtype)
    _print_properties(properties, as_json)


def _print_properties(properties: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json_module.dumps(properties, indent=2))
        return
    width = max(len(property_label(key)) for key in properties)
    for key, value in properties.items():
        first, *more = property_text(key, value).splitlines() or [""]
        print(f"{property_label(key):{width}}  {first}")
        for line in more:
            print(f"{'':{width}}  {line}")


@click.command()
@click.argument("name", shell_complete=complete_removable)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
def rm(name: str, yes: bool) -> None:
    """Delete an installed model and its KV caches, or the files made from a GGUF file."""
    from swiftchat.weights.store import default_store

    store = default_store()
    found = store.removable(name)
    what = f"the files made from {found.name}" if found.source == "cache" else found.name
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("rm asks for confirmation, but stdin is not a terminal", "use -y")
        question = f"remove {what} ({format_bytes(found.size_bytes)})?"
        click.confirm(sanitize(question), abort=True, err=True)
    caches = KVFolder(user_kv_folder())
    cached = {entry.model for entry in caches.entries() if Path(entry.model).exists()}
    removed = store.remove(name)
    for model in cached:
        if not Path(model).exists():
            caches.remove_others(model, digest="")
    print_notice(f"removed {what} ({format_bytes(removed.size_bytes)})")
    if found.origin is not None and found.origin.exists():
        print_notice(f"{found.origin} itself stays")
