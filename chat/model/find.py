"""Find the model to run on this machine, or download it."""

import os
import shlex
from pathlib import Path

from swiftchat.chat.terminal.output import print_notice
from swiftchat.chat.terminal.progress import download_display, progress_display
from swiftchat.errors import ModelNotFound


def find_model(name: str | None, *, offline: bool, quiet: bool) -> Path:
    """Return the directory of a model; without a name the default model, downloaded if missing."""
    from swiftchat.weights.hub.known_models import DEFAULT_MODEL
    from swiftchat.weights.store import default_store

    with progress_display(quiet) as progress:
        try:
            return default_store().resolve(name or DEFAULT_MODEL, progress, offline)
        except ModelNotFound:
            if name is not None or offline:
                raise
    if not quiet:
        print_notice(f"{DEFAULT_MODEL} is not installed: downloading it")
    path = download_model(DEFAULT_MODEL, quiet=quiet)
    if not quiet:
        _print_better_model()
    return path


def download_model(name: str, *, quiet: bool = False) -> Path:
    """Download a model and return its directory or GGUF file."""
    # Imported here: an installed model needs no HTTP library.
    from swiftchat.weights.download import download
    from swiftchat.weights.store import default_store

    with download_display(quiet) as progress:
        return download(name, default_store(), token=hub_token(), progress=progress)


def _print_better_model() -> None:
    """Say which command gets a better model than the small default one, if one fits."""
    from swiftchat.chat.model.bandwidth import bandwidth_bytes_per_s
    from swiftchat.chat.model.fit import fits, usable_devices
    from swiftchat.chat.terminal.amounts import format_bytes

    device, *_ = usable_devices()
    best = fits([device], bandwidth_bytes_per_s(device))[0]
    if not best.missing_bytes:
        print_notice(
            "it answers at once and is often wrong; the best known model that fits this machine, "
            f"{format_bytes(best.form.size_bytes)}: swiftchat use {shlex.quote(best.name)}"
        )


def hub_token() -> str | None:
    """Return the hub token in `HF_TOKEN`."""
    return os.environ.get("HF_TOKEN") or None
