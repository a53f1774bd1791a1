"""Which source of an option counts: flag, variable, role, conversation, project, configuration."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from swiftchat.chat.history.autosave import Autosave
from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.options.chat_options import ENGINE_FIELDS, saved_settings
from swiftchat.chat.options.parameter import flag_of
from swiftchat.chat.terminal.output import print_notice
from swiftchat.errors import UsageError

if TYPE_CHECKING:
    from swiftchat.chat.history.store import SessionStore
    from swiftchat.chat.options.config import ChatConfig

_COMMAND_LINE = click.core.ParameterSource.COMMANDLINE
_ENVIRONMENT = click.core.ParameterSource.ENVIRONMENT


def check_connect(ctx: click.Context, options: dict[str, Any]) -> None:
    """Raise `UsageError` if the command line has both --connect and what that engine determines."""
    if options["connect"] is None:
        return
    from swiftchat.chat.model.model_server import is_server_url

    determined = ("model", *ENGINE_FIELDS, "keep_alive", "no_attach")
    if is_server_url(options["connect"]):  # it serves several models
        determined = determined[1:]
    for context in (ctx, ctx.find_root()):
        for param in context.command.params:
            is_given = context.get_parameter_source(param.name or "") is _COMMAND_LINE
            if is_given and param.name in determined:
                raise UsageError(
                    f"{flag_of(param.name)} has no effect with --connect",
                    "choose it where the engine is started",
                )


def autosave_for(options: dict[str, Any]) -> Autosave:
    """Return the autosave of a chat; it opens the store at the first save."""
    is_saving = not (options["no_save"] or options["no_template"])
    return Autosave(_open_store if is_saving else None, print_notice)


def _open_store() -> "SessionStore":
    # Imported here, because the engine should start before SQLite is loaded.
    from swiftchat.chat.history.store import open_store

    return open_store()


def with_first_model(config: "ChatConfig") -> "ChatConfig":
    """Return the options of a chat in a terminal, with a model that the user picks if need be.

    That is if no model was chosen, and the default one is not installed either. If the user picks
    none, the default one is downloaded.
    """
    is_chosen = config.model is not None or config.dummy is not None or config.connect is not None
    if is_chosen or config.offline:
        return config
    from swiftchat.weights.hub.known_models import DEFAULT_MODEL
    from swiftchat.weights.store import default_store

    if default_store().has(DEFAULT_MODEL):
        return config
    from swiftchat.chat.model.choice import pick_first_model
    from swiftchat.chat.render.style import is_accessible

    return replace(config, model=pick_first_model(is_redrawn=not is_accessible(config, os.environ)))


def conversation_for(
    ctx: click.Context, options: dict[str, Any], *, with_one_shots: bool
) -> Conversation:
    """Return a new conversation or the one to continue; update the options it or a role sets.

    The last one that --continue means may be a one-shot `with_one_shots`.

    Precedence: flags and environment variables, the role, the conversation, the project file and
    its role, the configuration file.
    """
    sources = [context.get_parameter_source for context in (ctx, ctx.find_root())]
    given = {
        name
        for name in options
        for source in sources
        if source(name) in (_COMMAND_LINE, _ENVIRONMENT)
    }
    is_new = not (options["continue_"] or options["session"] is not None)
    role = None
    if options["role"] is not None:
        from swiftchat.chat.options.roles import load_role, parse_values

        role = load_role(options["role"]).filled(parse_values(options["variables"]))
    if role is not None and "role" in given:
        _apply(ctx, options, given, {**role.settings, "system": role.system or None})
        options["opening"] = role.prompt
    conversation = Conversation() if is_new else _continued(ctx, options, given, with_one_shots)
    if role is not None and "role" not in given:
        given |= ctx.obj.values.keys()
        # A conversation that is continued keeps its system prompt, also if it has none.
        system = role.system if is_new else ""
        _apply(ctx, options, given, {**role.settings, "system": system or None})
        options["opening"] = role.prompt if is_new else ""
    return conversation


def _continued(
    ctx: click.Context, options: dict[str, Any], given: set[str], with_one_shots: bool
) -> Conversation:
    """Return the conversation to continue; set the options that are saved with it."""
    from swiftchat.chat.history.store import load_session

    conversation = load_session(options["session"], with_one_shots=with_one_shots)
    settings, problems = saved_settings(conversation.settings)
    if (folder := settings.get("knowledge")) and not Path(folder).is_dir():
        for name in ("knowledge", "knowledge_model", "knowledge_pooling"):
            settings[name] = None
        problems.append(f"knowledge: {folder} is not a folder any more")
    for problem in problems:
        print_notice(f"warning: a setting of this conversation is left out: {problem}")
    _apply(ctx, options, given, {**settings, "system": conversation.system})
    return conversation


def _apply(
    ctx: click.Context, options: dict[str, Any], given: set[str], settings: dict[str, Any]
) -> None:
    """Set the options that are not in `given`, and add their names to it."""
    if "system_file" in given:
        given.add("system")
    for param in ctx.command.params:
        name = param.name or ""
        if settings.get(name) is not None and name not in given:
            options[name] = param.type_cast_value(ctx, settings[name])
            given.add(name)
            if name == "system":
                options["system_file"] = None
