"""The model and the template that an imported conversation may set.

The file may come from another person. A model or a template that is a path could be any file of
this machine: its text would enter the prompt. So would the files of a folder of knowledge.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from swiftchat.chat.options.chat_options import option_name
from swiftchat.errors import SwiftchatError
from swiftchat.weights.store import Store


def imported_settings(
    settings: Mapping[str, Any], store: Store
) -> tuple[dict[str, Any], list[str]]:
    """Return the settings without what could read files of this machine, and why it is left out.

    A folder of knowledge is left out, and a model or template that is only a path: the model must
    be installed, under its full name or short name; the template must be built in, or one of that
    model's own. The values have the right types.
    """
    found, left_out = dict(settings), []
    path: Path | None = None
    for name, value in settings.items():
        if option_name(name) == "model":
            path = store.named(value)
            if path is None:
                del found[name]
                left_out.append(f"the model {value!r:.200} is not the name of an installed model")
    for name, value in settings.items():
        if option_name(name).startswith("knowledge"):
            del found[name]
            left_out.append(f"{name} {value!r:.200} is of the machine that wrote the file")
        if option_name(name) == "template" and value not in _templates(store, path):
            del found[name]
            left_out.append(f"the template {value!r:.200} is neither built in nor of its model")
    return found, left_out


def _templates(store: Store, path: Path | None) -> Collection[str]:
    """Return the names of the built-in templates, and of those of a directory or GGUF file."""
    # Imported here: most conversations name no template.
    from swiftchat.tokenizer import Tokenizer
    from swiftchat.tokenizer.template.builtin import BUILT_IN

    if path is None:
        return BUILT_IN
    try:
        folder = store.resolve(str(path)) if path.is_file() else path
        return {*BUILT_IN, *Tokenizer.load(folder).templates}
    except SwiftchatError:  # the model cannot be used either
        return BUILT_IN
