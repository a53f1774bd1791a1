"""Calls of tools in a one-shot: reported on stderr and as JSON, without questions."""

from collections.abc import Callable
from typing import Any

from swiftchat.chat.history.conversation import Message
from swiftchat.chat.history.tool_call import ToolCall
from swiftchat.chat.terminal.error_report import print_error
from swiftchat.chat.terminal.output import print_notice
from swiftchat.chat.tools.result import shortened
from swiftchat.chat.tools.toolbox import Tool
from swiftchat.errors import SwiftchatError

_MAX_CHARACTERS = 500  # of a call on stderr


class ReportedCalls:
    """The view of tool rounds in a one-shot. `found` are the calls with their results."""

    def __init__(
        self,
        print_event: Callable[[dict[str, Any]], None],
        warn: Callable[[str], None],
        is_quiet: bool,
    ) -> None:
        self.found: list[dict[str, Any]] = []
        self._print_event = print_event
        self._warn = warn
        self._is_quiet = is_quiet

    def show_call(self, label: str, call: ToolCall) -> None:
        self.found.append({"tool": label, "arguments": call.arguments})
        self._print_event({"event": "tool_call", **self.found[-1]})
        if not self._is_quiet:
            print_notice(shortened(f"calls {call.labeled(label)}", _MAX_CHARACTERS))

    def show_result(self, message: Message) -> None:
        if self.found and "result" not in self.found[-1]:
            self.found[-1]["result"] = message.content
            self._print_event({"event": "tool_result", **self.found[-1]})

    def show_error(self, error: SwiftchatError) -> None:
        print_error(error, debug=False)

    def ask(self, tool: Tool, call: ToolCall) -> None:
        """Refuse the call."""
        self._warn(f"{tool.label} was not called: --allow-tool {tool.label} allows it")
