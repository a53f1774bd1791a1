"""`/role`: list, show and use roles."""

import shlex
from collections.abc import Mapping

from swiftchat.chat.attachments.user_text import read_text
from swiftchat.chat.options.chat_options import (
    SAMPLING_OPTIONS,
    sampling_changes,
)
from swiftchat.chat.options.roles import Role, load_role, parse_values
from swiftchat.chat.options.user_files import role_file, role_names, roles_folder
from swiftchat.chat.slash.command import Command
from swiftchat.chat.slash.state import ChatState
from swiftchat.chat.terminal.output import print_line, print_notice
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.errors import SwiftchatError
from swiftchat.weights.files.paths import split_words


def role(state: ChatState, argument: str) -> None:
    """List the roles, show one, or use one with values for its variables."""
    match split_words(argument, "/role"):
        case []:
            _list_roles()
        case ["show", name]:
            print(sanitize(read_text(str(role_file(name))).told()).rstrip())
        case [name, *values]:
            found = load_role(name).filled(parse_values(values), usage="")
            _use(state, found)
            print_line(f"the conversation continues with the role {name}")


def _list_roles() -> None:
    names = role_names()
    if not names:
        print_line(f"no roles yet; write {roles_folder() / 'NAME.md'}")
        return
    width = max(map(len, names))
    for name in names:
        try:
            about = _about(load_role(name))
        except SwiftchatError as error:
            about = f"cannot be used: {' '.join(error.message.split())}"
        print_line(f"{name:{width}}  {about}".rstrip(), width + 2)


def _about(role: Role) -> str:
    """Return the variables of a role with their defaults, then the beginning of its text."""
    variables = [
        f"{name}=" if text is None else f"{name}={shlex.quote(text)}"
        for name, text in role.defaults.items()
    ]
    first, *_ = (role.system or role.prompt or "options only").splitlines()
    return " ".join([*variables, f"· {first}" if variables else first])


def _use(state: ChatState, role: Role) -> None:
    """Set the system prompt and the parameters of a role; its prompt becomes the draft."""
    settings = dict(role.settings)
    model, think = settings.pop("model", None), settings.pop("think", None)
    state.chat_model.set_parameters(sampling_changes(settings))
    state.chat_model.prompts.think = think or state.chat_model.prompts.think
    state.conversation.system = role.system or state.conversation.system
    state.draft = role.prompt
    if model not in (None, state.chat_model.settings["model"]):
        print_notice(f"this role uses {model}; /model {model} switches to it")
    if others := [name for name in settings if name not in SAMPLING_OPTIONS]:
        print_notice(f"only --role sets {', '.join(others)}, when the program starts")


def _complete(state: ChatState) -> Mapping[str, str]:
    return {"show": "print the file of a role"} | dict.fromkeys(role_names(), "")


ROLE_COMMANDS = (
    Command(
        "/role",
        "[NAME [VAR=VALUE…]]",
        "list the roles, or use one",
        role,
        completion=_complete,
        details="/role NAME lang=python sets the system prompt and the parameters of a role from\n"
        "now on; its prompt becomes the next message, which you can edit. /role show NAME\n"
        "prints its file. Put a value with spaces between quotes.",
    ),
)
