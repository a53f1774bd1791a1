"""The tools of a model: their start, and the size of their results."""

from collections.abc import Callable

from swiftchat.chat.builtin.catalog import builtin_tools, tool_names
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.terminal.error_report import print_error
from swiftchat.chat.terminal.output import print_notice
from swiftchat.chat.tools.connection import ServerError, check_installed
from swiftchat.chat.tools.servers import parse_servers
from swiftchat.chat.tools.toolbox import ALL, Toolbox
from swiftchat.errors import SwiftchatError

_MAX_RESULT_CHARACTERS = 32_768


def check_tools(config: ChatConfig) -> None:
    """Raise `UsageError` for the name of no built-in tool, and for servers that are misspelled."""
    tool_names(config.tools or "")
    parse_servers(config.mcp, config.offline)


def start_tools(
    config: ChatConfig,
    chat_model: ChatModel,
    show: Callable[[str], None] = lambda text: None,
    *,
    can_ask: bool = True,
) -> Toolbox:
    """Start the servers of `--mcp` and give all tools to the model; `show` receives progress.

    A server that fails is one error on stderr. If the user cannot be asked, it is raised instead,
    unless servers are optional, and built-in tools that are named need no question. Raises
    `UsageError` for the name of no tool, if the SDK is missing, and if the model's chat template
    takes no tools.
    """
    if config.no_template and config.has_tools:
        print_notice("note: --no-template completes text without tools")
        return Toolbox()
    names = tool_names(config.tools or "")
    allowed = {*config.allow_tool, *(() if can_ask or config.tools == ALL else names)}
    specs = parse_servers(config.mcp, config.offline)
    toolbox = Toolbox(specs, allowed, builtin_tools(names, offline=config.offline))
    if toolbox.is_empty:
        return toolbox
    if specs:
        check_installed()
    chat_model.prompts.require_tools()

    def warn(error: SwiftchatError) -> None:
        if isinstance(error, ServerError) and not (can_ask or config.mcp_optional):
            raise ServerError(error.message, f"{error.hint}; --mcp-optional answers without it")
        print_error(error, debug=config.debug)

    try:
        toolbox.start(warn, lambda name: show(f"starting the tools of {name}"))
    except BaseException:
        toolbox.close()
        raise
    chat_model.tools = toolbox.specs
    return toolbox


def max_result_characters(chat_model: ChatModel, text: str) -> int:
    """Return how much of the result of a tool may be used: a quarter of the context at most."""
    quarter = chat_model.context_tokens // 4
    part = text[:_MAX_RESULT_CHARACTERS]
    num_tokens = len(chat_model.tokenizer.encode(part))
    fits = num_tokens <= quarter
    return _MAX_RESULT_CHARACTERS if fits else len(part) * quarter // num_tokens
