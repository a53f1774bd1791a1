"""`swiftchat models` and `use`: the known models that fit this machine, and the default one."""

import json as json_module
import sys
from typing import TYPE_CHECKING

import click

from swiftchat.chat.history.listing import Column, format_time, print_table
from swiftchat.chat.options.completion import complete_known_models
from swiftchat.chat.options.size import Size
from swiftchat.chat.terminal.amounts import format_bytes
from swiftchat.chat.terminal.output import print_line, print_notice
from swiftchat.errors import UsageError
from swiftchat.weights.files.paths import user_path
from swiftchat.weights.hub.known_models import known_models, new_models_time

if TYPE_CHECKING:
    from swiftchat.chat.model.fit import Fit
    from swiftchat.chat.model.memory import DeviceMemory
    from swiftchat.weights.store import Store

_COLUMNS = (
    Column("NAME"),
    Column("SIZE", left_out=4),
    Column("MEMORY", left_out=3),
    Column("HERE"),
    Column("ABILITIES", left_out=5, is_shortened=True),
    Column("LICENSE", left_out=1, is_shortened=True),
    Column("DATE", left_out=2),
)
_NUM_BEST = 15


@click.command()
@click.argument("word", default="", shell_complete=complete_known_models)
@click.option("-a", "--all", "with_all", is_flag=True, help="Also list models that do not fit.")
@click.option(
    "--fits", "size_bytes", type=Size(is_positive=True), help="Free memory to reckon with: 8GiB."
)
@click.option("--refresh", is_flag=True, help="Ask the hub for popular models first.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def models(word: str, with_all: bool, size_bytes: int | None, refresh: bool, as_json: bool) -> None:
    """List the known models that fit this machine, the best first.

    With a WORD list all forms of the models that have it in their names. SIZE is about that of the
    files, MEMORY that of the weights and a context of 8192 tokens; the speed is what the bandwidth
    of the memory allows. Of several GPUs as many count as --tp auto would take. Models that fit
    come first, then those that answer as fast as one reads, then those of which more is expected,
    by size and date. --refresh adds the most downloaded models of the hub that run, by their
    names there; without a network it says so, and the list is the kept one. A * marks installed
    models.
    """
    from dataclasses import replace

    from swiftchat.chat.model.bandwidth import bandwidth_bytes_per_s
    from swiftchat.chat.model.fit import fits, form_fits, usable_devices
    from swiftchat.weights.store import default_store

    if refresh:
        _refresh()
    devices = usable_devices()
    device = devices[0]
    bytes_per_s = bandwidth_bytes_per_s(device)
    if size_bytes is not None:
        device = replace(device, total_bytes=size_bytes, free_bytes=size_bytes)
        devices = [device]
    found = form_fits(devices, bytes_per_s, word) if word else fits(devices, bytes_per_s)
    if not found:
        raise UsageError(f"no known model has {word!r} in its name", "swiftchat models --all")
    fitting = [fit for fit in found if not fit.missing_bytes]
    shown = found if word or with_all or as_json else fitting[:_NUM_BEST]
    if as_json:
        print(json_module.dumps([_as_json(fit) for fit in shown], indent=2))
        return
    store = default_store()
    print_table(
        _COLUMNS,
        (_row(fit, is_installed=_is_installed(store, fit.form.source)) for fit in shown),
        is_aligned_in_pipes=True,
    )
    for each in devices:
        print_line(_usable(each, bytes_per_s))
    if any(fit.num_devices > 1 and not fit.missing_bytes for fit in shown):
        print_line("--tp auto takes as many GPUs as a model needs: swiftchat -m NAME --tp auto")
    if not (word or with_all):
        num_more, num_large = len(fitting) - len(shown), len(found) - len(fitting)
        print_line(f"{num_more} more fit, {num_large} need more memory: swiftchat models --all")
    print_line(_dates())
    print_line("swiftchat use NAME downloads a model and makes it the default")


def _is_installed(store: "Store", source: str) -> bool:
    """Return whether these files are stored; another type of the same repository is another one."""
    found = store.stored(source)
    return any((":" in source) == (":" in model.name) for model in found)


def _refresh() -> None:
    """Ask the hub for models beyond the table; a network that fails is one notice."""
    from swiftchat.chat.model.find import hub_token
    from swiftchat.chat.model.new_models import refresh_models
    from swiftchat.chat.terminal.progress import download_display
    from swiftchat.errors import DownloadError
    from swiftchat.weights.hub.client import Hub

    try:
        with download_display() as progress:
            num_models = refresh_models(Hub.from_settings(hub_token()), progress)
    except DownloadError as error:
        print_notice(f"the list is not refreshed: {error.message}; {error.hint}")
    else:
        print_notice(f"the hub has {num_models} popular models beyond the table that run here")


def _dates() -> str:
    """Return one line on the age of the list."""
    newest = max(model.date for model in known_models().values())
    asked = new_models_time()
    more = "" if asked is None else f", models of the hub of {format_time(asked)}"
    return f"table of {newest}{more}; swiftchat models --refresh asks the hub"


def _usable(device: "DeviceMemory", bytes_per_s: float | None) -> str:
    """Return one line on the memory of a device that an engine would use, and its bandwidth."""
    from swiftchat.chat.model.fit import room_bytes

    speed = "" if bytes_per_s is None else f", {bytes_per_s / 1e9:.0f} GB/s"
    return (
        f"{device.name}: {format_bytes(room_bytes(device))} of "
        f"{format_bytes(device.free_bytes)} free memory can be used{speed}"
    )


def _row(fit: "Fit", *, is_installed: bool) -> tuple[str, ...]:
    return (
        f"{fit.name}{' *' if is_installed else ''}",
        format_bytes(fit.form.size_bytes),
        format_bytes(fit.memory_bytes),
        fit.verdict,
        fit.model.abilities,
        fit.model.license,
        fit.model.date,
    )


def _as_json(fit: "Fit") -> dict[str, object]:
    speed = fit.tokens_per_s
    return {
        "name": fit.name,
        "source": fit.form.source,
        "bits": fit.form.bits,
        "size_bytes": fit.form.size_bytes,
        "memory_bytes": fit.memory_bytes,
        "fits": not fit.missing_bytes,
        "tp": fit.num_devices,
        "missing_bytes": fit.missing_bytes,
        "tokens_per_s": None if speed is None else round(speed, 1),
        "parameters": int(fit.model.parameters),
        "active_parameters": int(fit.model.active_parameters),
        "context_tokens": fit.model.context_tokens,
        "tools": fit.model.has_tools,
        "thinking": fit.model.has_thinking,
        "images": False,
        "license": fit.model.license,
        "date": fit.model.date,
    }


@click.command()
@click.argument("name", default="", shell_complete=complete_known_models)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
def use(name: str, yes: bool) -> None:
    """Make a model the default; download it if it is missing.

    NAME is what -m takes. Without it the model is picked from a list, in a terminal.
    """
    import os

    from swiftchat.chat.model.choice import pick_first_model, use_model
    from swiftchat.chat.render.style import is_dumb
    from swiftchat.chat.subcommands.models import download_agreed
    from swiftchat.errors import ModelNotFound
    from swiftchat.weights.store import default_store

    if not name:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError("use needs a model", "swiftchat models lists those that fit")
        if pick_first_model(is_redrawn=not is_dumb(os.environ)) is None:
            print_notice("the default model stays")
        return
    store, path = default_store(), user_path(name)
    try:
        found = store.find(name)
    except ModelNotFound:
        if path.exists():
            raise
        use_model(download_agreed(name, yes=yes))
        return
    # A folder may have the name of an installed model without being one.
    is_path = path == found or path in found.parents
    use_model(str(path.resolve()) if is_path else name)
