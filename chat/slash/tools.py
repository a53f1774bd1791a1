"""The command `/tools`: all tools, on and off, permission."""

import operator

from swiftchat.chat.builtin.catalog import NAMES, builtin_tools, tool_names
from swiftchat.chat.slash.command import Command
from swiftchat.chat.slash.state import ChatState
from swiftchat.chat.terminal.error_report import print_error
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.chat.tools.tool import Tool
from swiftchat.chat.tools.toolbox import ALL
from swiftchat.errors import UsageError

_MAX_DESCRIPTION = 60  # characters


def tools(state: ChatState, argument: str) -> None:
    toolbox = state.toolbox
    match argument.split():
        case []:
            _list(state)
        case ["on", *names]:
            _turn_on(state, ",".join(names))
        case ["off"]:
            toolbox.is_on = False
            print("the tools are off")
        case ["allow", name]:
            label = toolbox.allow(name)
            print(sanitize(f"{label} is called without asking until the end of this chat"))
        case _:
            raise UsageError(f"/tools cannot {argument!r}", "/tools, /tools on|off|allow NAME")


def _turn_on(state: ChatState, names: str) -> None:
    """Start servers that have ended, and offer the named built-in tools: all if there are none."""
    toolbox, config = state.toolbox, state.config
    names = names or (ALL if toolbox.is_empty else "")
    builtin = builtin_tools(tool_names(names), offline=config.offline) if names else None
    state.chat_model.prompts.require_tools()
    toolbox.start(
        lambda error: print_error(error, debug=config.debug),
        lambda name: state.status.show(f"starting the tools of {name}"),
        builtin,
    )
    state.status.clear()
    toolbox.is_on = True
    print(f"{len(toolbox.tools)} tools are on")


def _list(state: ChatState) -> None:
    toolbox = state.toolbox
    for source, found in toolbox.sources().items():
        title = source or "built in"
        print(sanitize(f"{title}: {len(found)} tools" if found else f"{title}: does not run"))
        width = max((len(tool.label) for tool in found), default=0)
        for tool in found:
            print(sanitize(f"  {tool.label:{width}}  {_about(state, tool)}".rstrip()))
    if toolbox.is_empty:
        print(f"/tools on gives the model the built-in tools: {', '.join(NAMES)}")
    else:
        print(f"tools are {'on' if toolbox.is_on else 'off'}")


def _about(state: ChatState, tool: Tool) -> str:
    """The permission and the beginning of the description, in one line."""
    text = " ".join(tool.description.split())
    short = text if len(text) <= _MAX_DESCRIPTION else f"{text[:_MAX_DESCRIPTION]}…"
    is_allowed = state.toolbox.is_allowed(tool, state.conversation.id)
    return f"{'(allowed) ' if is_allowed else ''}{short}"


def _complete(state: ChatState) -> dict[str, str]:
    names = {
        tool.label: " ".join(tool.description.split()) for tool in state.toolbox.tools.values()
    }
    allow = {f"allow {name}": text[:_MAX_DESCRIPTION] for name, text in names.items()}
    on = {f"on {name}": "built in" for name in NAMES}
    return {"on": "", **on, "off": "", f"allow {ALL}": "call every tool without asking", **allow}


TOOL_COMMANDS = (
    Command(
        "/tools",
        "[on [NAMES]|off|allow NAME]",
        "list the tools, switch them, allow one",
        tools,
        completion=_complete,
        details="on gives the model the built-in tools if there are no others, or those with\n"
        "NAMES, and starts MCP servers again that have ended. allow NAME calls a tool without\n"
        "asking until the end of this chat; NAME is one of the list, or all.",
        is_aside=operator.not_,
    ),
)
