"""Shell completion of models, conversations, roles, templates and shapes.

Each function has the signature of click's `shell_complete` callbacks. They import nothing slow and
change no file; they ignore files that they cannot read, because a shell shows no errors.
"""

from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem

from swiftchat.chat.terminal.sanitize import sanitize

COMPLETE_VARIABLE = "_SWIFTCHAT_COMPLETE"  # set by the completion script


def complete_models(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete models on this machine, and files."""
    return [*complete_stored_models(ctx, param, incomplete), _files(incomplete)]


def complete_files(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return [_files(incomplete)]


def complete_stored_models(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete models on this machine, as `-m` finds them: by the name or its last part."""
    from swiftchat.weights.store import default_store

    names = default_store().names()
    found = [name for name in names if name.lower().startswith(incomplete.lower())]
    if not found:
        by_last_part = [
            name for name in names if name.lower().rpartition("/")[2].startswith(incomplete.lower())
        ]
        # A shell replaces what is typed by the common beginning, so there must be one.
        found = by_last_part if len({name.partition("/")[0] for name in by_last_part}) == 1 else []
    return matching(((name, "") for name in found), "")


def complete_removable(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete models on this machine, and GGUF files of which something is cached."""
    from swiftchat.weights.store import default_store

    files = {model.name for model in default_store().derived()}
    found = complete_stored_models(ctx, param, incomplete)
    return [*found, *matching(((name, "") for name in sorted(files)), incomplete)]


def complete_downloads(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete short names of models on the hub; those of forms behind the whole name."""
    from swiftchat.weights.hub.known_models import known_models

    names = {
        form.name if is_form else name: form.source
        for name, model in known_models().items()
        for is_form in (False, incomplete.startswith(name))
        for form in (model.forms if is_form else model.forms[:1])
    }
    return matching(names.items(), incomplete)


def complete_known_models(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete models on this machine, and short names of models on the hub."""
    stored = complete_stored_models(ctx, param, incomplete)
    return [*stored, *complete_downloads(ctx, param, incomplete)]


def complete_sessions(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete conversations by name or by the beginning of the id."""
    from swiftchat.chat.history.conversation import SHORT_ID
    from swiftchat.chat.history.store import list_names, sessions_path

    rows = list_names(sessions_path())
    return matching(((name or one[:SHORT_ID], title) for one, name, title in rows), incomplete)


def complete_roles(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from swiftchat.chat.options.user_files import role_names

    return matching(((name, "") for name in role_names()), incomplete)


def complete_variables(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the variables of the role that was typed before."""
    from swiftchat.chat.options.role_text import read_role
    from swiftchat.errors import SwiftchatError

    try:
        role = read_role(ctx.params.get("role") or "")
    except SwiftchatError:
        return []
    return matching(((f"{name}=", text or "") for name, text in role.defaults.items()), incomplete)


def complete_templates(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete built-in templates, and files."""
    from swiftchat.tokenizer.template.builtin import BUILT_IN

    found = matching(((name, "") for name in BUILT_IN), incomplete)
    return [*found, _files(incomplete)]


def complete_shapes(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from swiftchat.weights.model.dummy import DUMMY_CONFIGS

    found = matching(((name, "") for name in DUMMY_CONFIGS), incomplete)
    return [*found, _files(incomplete)]


def _files(incomplete: str) -> CompletionItem:
    """Return the item that stands for all files that begin with `incomplete`."""
    return CompletionItem(incomplete, type="file")


def matching(names: Iterable[tuple[str, str]], incomplete: str) -> list[CompletionItem]:
    """Return completions for a typed beginning; unprintable names are left out."""
    return [
        CompletionItem(name, help=sanitize(" ".join(about.split())[:60]) or None)
        for name, about in names
        if name.startswith(incomplete) and name.isprintable()
    ]
