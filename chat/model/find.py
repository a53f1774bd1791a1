"""Find the model to run on this machine, or download the default one."""

import os
import sys
from pathlib import Path

from swiftchat.chat.terminal.progress import progress_display
from swiftchat.errors import ModelNotFound


def find_model(name: str | None, *, offline: bool, quiet: bool) -> Path:
    """The directory of the model to run; without a name the default one, downloaded if need be."""
    from swiftchat.weights.hub.aliases import DEFAULT_MODEL
    from swiftchat.weights.store import default_store

    store = default_store()
    with progress_display(quiet) as progress:
        try:
            return store.resolve(name or DEFAULT_MODEL, progress, offline)
        except ModelNotFound:
            if name is not None or offline:
                raise
        if not quiet:
            print(f"{DEFAULT_MODEL} is not here yet: downloading it once", file=sys.stderr)
        # Here, not at the top: who has a model should not wait for an HTTP library.
        from swiftchat.weights.download import download

        return download(DEFAULT_MODEL, store, token=hub_token(), progress=progress)


def hub_token() -> str | None:
    return os.environ.get("HF_TOKEN") or None
