"""The tools of a model: their start, and the size of their results."""

from collections.abc import Callable

from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.terminal.error_report import print_error
from swiftchat.chat.terminal.output import print_notice
from swiftchat.chat.tools.connection import check_installed
from swiftchat.chat.tools.servers import parse_servers
from swiftchat.chat.tools.toolbox import Toolbox

_MAX_RESULT_CHARACTERS = 32_768


def start_tools(
    config: ChatConfig, chat_model: ChatModel, show: Callable[[str], None] = lambda text: None
) -> Toolbox:
    """Start the servers of `--mcp` and give their tools to the model; `show` receives progress.

    A server that fails is one error on stderr. Raises `UsageError` if the SDK is missing or the
    model's chat template takes no tools.
    """
    if config.no_template and config.mcp:
        print_notice("note: --no-template completes text without the tools of --mcp")
        return Toolbox([])
    toolbox = Toolbox(parse_servers(config.mcp, config.offline), config.allow_tool)
    if toolbox.has_servers:
        check_installed()
        chat_model.prompts.require_tools()
        try:
            toolbox.start(
                lambda error: print_error(error, debug=config.debug),
                lambda name: show(f"starting the tools of {name}"),
            )
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
