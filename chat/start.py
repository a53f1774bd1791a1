"""What a chat starts with: an earlier conversation, a role, and the options that these bring."""

import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import click

from swiftchat.chat.history.autosave import Autosave
from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.errors import UsageError

if TYPE_CHECKING:
    from swiftchat.chat.history.store import Sessions

# What an engine that runs already has settled, by the options' names.
_ENGINES = ("model", "ctx_size", "device", "tp", "dtype", "threads", "dummy")
_SAID = (click.core.ParameterSource.COMMANDLINE, click.core.ParameterSource.ENVIRONMENT)


def check_connect(ctx: click.Context, options: dict[str, Any]) -> None:
    """Raise `UsageError` for options on the command line that `--connect` leaves nothing to do."""
    if options["connect"] is None:
        return
    for one in (ctx, ctx.find_root()):
        for param in one.command.params:
            said = one.get_parameter_source(param.name or "") is _SAID[0]
            if said and param.name in _ENGINES:
                raise UsageError(
                    f"{param.opts[-1]} does not go with --connect",
                    "it was settled where the engine was started",
                )


def autosave_for(options: dict[str, Any]) -> Autosave:
    """What keeps the conversation; nothing is opened yet."""
    keeps = not (options["no_save"] or options["no_template"])
    return Autosave(
        _open_store if keeps else None,
        lambda text: print(sanitize(text), file=sys.stderr, flush=True),
    )


def _open_store() -> "Sessions":
    # Here, not at the top: the engine shall start before there is anything to save.
    from swiftchat.chat.history.store import open_store

    return open_store()


def conversation_for(
    ctx: click.Context, options: dict[str, Any], known: Collection[str]
) -> Conversation:
    """A new conversation or the one to go on with; changes the options that it or a role sets.

    Flags and variables come first, then the role, then the conversation, then the configuration
    file. `known` are the options that a role may set.
    """
    sources = [one.get_parameter_source for one in (ctx, ctx.find_root())]
    given = {name for name in options for source in sources if source(name) in _SAID}
    if options["role"] is not None:
        from swiftchat.chat.options.roles import load_role

        role = load_role(options["role"], known)
        _settle(ctx, options, given, {**role.settings, "system": role.system or None})
    if not (options["continue_"] or options["session"] is not None):
        return Conversation()
    from swiftchat.chat.history.store import load_wanted

    conversation = load_wanted(options["session"])
    _settle(ctx, options, given, {**conversation.settings, "system": conversation.system})
    return conversation


def _settle(
    ctx: click.Context, options: dict[str, Any], given: set[str], settings: dict[str, Any]
) -> None:
    """Let settings decide what nobody has said before; `given` grows by what they say."""
    if "system_file" in given:
        given.add("system")
    for param in ctx.command.params:
        name = param.name or ""
        if settings.get(name) is not None and name not in given:
            options[name] = param.type_cast_value(ctx, settings[name])
            given.add(name)
            if name == "system":
                options["system_file"] = None
