"""Find the model to run on this machine, or download the default model."""

import os
from pathlib import Path

from swiftchat.chat.terminal.output import print_notice
from swiftchat.chat.terminal.progress import progress_display
from swiftchat.errors import ModelNotFound


def find_model(name: str | None, *, offline: bool, quiet: bool) -> Path:
    """Return the directory of a model; without a name the default model, downloaded if missing."""
    from swiftchat.weights.hub.known_models import DEFAULT_MODEL
    from swiftchat.weights.store import default_store

    store = default_store()
    with progress_display(quiet) as progress:
        try:
            return store.resolve(name or DEFAULT_MODEL, progress, offline)
        except ModelNotFound:
            if name is not None or offline:
                raise
        if not quiet:
            print_notice(f"{DEFAULT_MODEL} is not installed: downloading it")
        # Imported here: an installed model needs no HTTP library.
        from swiftchat.weights.download import download

        return download(DEFAULT_MODEL, store, token=hub_token(), progress=progress)


def hub_token() -> str | None:
    """Return the hub token in `HF_TOKEN`."""
    return os.environ.get("HF_TOKEN") or None
