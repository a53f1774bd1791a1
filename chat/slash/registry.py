"""The registry of slash commands: help, completion and dispatch are made from it."""

import contextlib
import difflib
import os
from collections.abc import Mapping

from swiftchat.chat.help.columns import grouped_columns, two_columns
from swiftchat.chat.help.conversation_pages import KEYS
from swiftchat.chat.help.pages import PAGES, page, parameter_help
from swiftchat.chat.help.wrap import page_width, wrapped
from swiftchat.chat.options.chat_options import ALL_PARAMETERS
from swiftchat.chat.options.parameter import shown
from swiftchat.chat.slash.adapters import ADAPTER_COMMANDS
from swiftchat.chat.slash.answer import ANSWER_COMMANDS
from swiftchat.chat.slash.attach import ATTACH_COMMANDS
from swiftchat.chat.slash.branches import BRANCH_COMMANDS
from swiftchat.chat.slash.command import Command, Next, always
from swiftchat.chat.slash.find import FIND_COMMANDS
from swiftchat.chat.slash.knowledge import KNOWLEDGE_COMMANDS
from swiftchat.chat.slash.models import MODEL_COMMANDS
from swiftchat.chat.slash.output_format import OUTPUT_FORMAT_COMMANDS
from swiftchat.chat.slash.roles import ROLE_COMMANDS
from swiftchat.chat.slash.sessions import SESSION_COMMANDS
from swiftchat.chat.slash.settings import SETTINGS_COMMANDS
from swiftchat.chat.slash.state import ChatState
from swiftchat.chat.slash.tools import TOOL_COMMANDS
from swiftchat.chat.terminal.pager import paged
from swiftchat.errors import SwiftchatError, UsageError


def _help(state: ChatState, argument: str) -> None:
    if argument in PAGES:
        print(page(argument, command_table, page_width()), end="")
    elif argument:
        _help_about(argument)
    else:
        width = page_width()
        topics = wrapped(f"/help TOPIC: {', '.join(PAGES)}", width)
        keys = two_columns(KEYS, width)
        print(f"{command_table(width)}\n\nKeys:\n{keys}\n\n{topics}", end="")


def command_table(width: int = 80) -> str:
    """Return the slash commands in groups with headings, for a terminal of `width` columns."""
    rows = {
        heading: [command.help_row for command in commands] for heading, commands in GROUPS.items()
    }
    return grouped_columns(rows, width)


def _help_about(name: str) -> None:
    command = BY_NAME.get(name) or BY_NAME.get(f"/{name}")
    if command is None and (text := parameter_help(name)):
        print("".join(wrapped(line, page_width()) for line in text.splitlines()), end="")
        return
    if command is None:
        parameters = [one.name for one in ALL_PARAMETERS]
        near = difflib.get_close_matches(name, (*PAGES, *BY_NAME, *parameters), n=1)
        hint = f"did you mean /help {near[0]}? " if near else ""
        raise UsageError(f"no help on {shown(name)}", f"{hint}/help lists commands and topics")
    usage, summary = command.help_row
    width = page_width()
    print(wrapped(f"{usage}  {summary}", width) + wrapped(command.details, width), end="")


def _leave(state: ChatState, argument: str) -> Next:
    return Next.LEAVE


def _complete_names(state: ChatState) -> Mapping[str, str]:
    topics = {name: one.summary for name, one in PAGES.items()}
    return {command.name: command.summary for command in COMMANDS} | topics


_CHAT_COMMANDS = (
    Command(
        "/help",
        "[NAME]",
        "list the commands, or explain a command, a parameter or a topic",
        _help,
        aliases=("/?",),
        completion=_complete_names,
        is_aside=always,
    ),
    Command("/bye", "", "leave", _leave, aliases=("/exit", "/quit")),
)
GROUPS: dict[str, tuple[Command, ...]] = {
    "This chat": _CHAT_COMMANDS,
    "Answers": (*ANSWER_COMMANDS, *OUTPUT_FORMAT_COMMANDS),
    "Turns and branches": BRANCH_COMMANDS,
    "Attachments": (*ATTACH_COMMANDS, *KNOWLEDGE_COMMANDS),
    "Conversations": (*FIND_COMMANDS, *SESSION_COMMANDS),
    "Settings": SETTINGS_COMMANDS,
    "Models and tools": (*MODEL_COMMANDS, *ADAPTER_COMMANDS, *TOOL_COMMANDS, *ROLE_COMMANDS),
}
COMMANDS = tuple(command for commands in GROUPS.values() for command in commands)
BY_NAME = {name: command for command in COMMANDS for name in (command.name, *command.aliases)}


def is_command(text: str) -> bool:
    """Return whether a line is a command: `//` is a literal slash, an existing path is text.

    Several lines are a message: pasted text may begin with the name of a command.
    """
    line = text.strip()
    if "\n" in line or line.startswith("//"):
        return False
    if text.startswith("!"):
        return True
    if not text.startswith("/"):
        return False
    word = line.split(maxsplit=1)[0]
    return word in BY_NAME or not (_exists(line) or _exists(word))


def _exists(path: str) -> bool:
    # Path.exists would raise for a name that is too long.
    return len(path) > 1 and os.path.exists(path)  # noqa: PTH110


def _words(text: str) -> tuple[str, str]:
    """Return the name and the argument of a command."""
    if text.startswith("!"):
        return "!", text[1:].strip()
    name, *rest = text.strip().split(maxsplit=1)
    return name, "".join(rest)


def is_aside(text: str) -> bool:
    """Return whether a line is a command that may run while an answer comes, or no command."""
    if not is_command(text):
        return False
    name, argument = _words(text)
    return name not in BY_NAME or BY_NAME[name].is_aside(argument)


def run(state: ChatState, text: str) -> Next:
    """Run a line for which `is_command` is true. Raises `UsageError` for an unknown command."""
    name, argument = _words(text)
    command = BY_NAME.get(name)
    if command is None:
        raise _unknown(name)
    if argument and not command.arguments:
        raise UsageError(f"{name} takes no argument", f"to send the line as a message: /{text}")
    is_paged = command.is_aside(argument) and state.may_redraw
    try:
        with paged(state.keyboard) if is_paged else contextlib.nullcontext():
            return command.run(state, argument) or Next.PROMPT
    except UsageError as error:
        if error.hint == UsageError.default_hint:  # which is about the command line
            error.hint = f"see /help {command.name}"
        raise


def _unknown(name: str) -> UsageError:
    near = difflib.get_close_matches(name, BY_NAME, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}? " if near else ""
    return UsageError(f"unknown command {name}", f"{hint}/help lists the commands")


def complete_argument(state: ChatState, name: str) -> Mapping[str, str]:
    """Return the words that Tab offers after a command, each with a description."""
    completion = BY_NAME[name].completion if name in BY_NAME else ()
    if not callable(completion):
        return dict.fromkeys(completion, "")
    # A damaged store must not disturb the typing.
    with contextlib.suppress(SwiftchatError):
        return completion(state)
    return {}
