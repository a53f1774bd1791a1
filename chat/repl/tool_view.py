"""Calls of tools at the prompt: what is shown, and the question to the user."""

from swiftchat.chat.commands.state import ChatState
from swiftchat.chat.history.conversation import Message
from swiftchat.chat.history.tool_call import ToolCall
from swiftchat.chat.terminal.error_report import print_error
from swiftchat.chat.terminal.output import write
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.chat.tools.rounds import Consent
from swiftchat.chat.tools.toolbox import Tool
from swiftchat.errors import SwiftchatError

_MAX_CHARACTERS = 2000  # of a call, before the user asks for all of it
_CHOICES = "y = yes, n = no, a = always in this conversation"
_ANSWERS: dict[str, Consent] = {"y": "yes", "yes": "yes", "a": "always", "always": "always"}


class ToolView:
    """The tool rounds of an interactive chat."""

    def __init__(self, state: ChatState) -> None:
        self._state = state

    def show_call(self, label: str, call: ToolCall) -> None:
        self._state.status.clear()
        text = call.labeled(label)
        if len(text) > _MAX_CHARACTERS:
            text = f"{text[:_MAX_CHARACTERS]}… ({len(text) - _MAX_CHARACTERS} more characters)"
        print(sanitize(f"calls {text}"), flush=True)

    def show_result(self, message: Message) -> None:
        # Imported here: it would delay the prompt.
        from swiftchat.chat.render.reprint import result_rows

        self._state.status.clear()
        print("\n".join(result_rows(message)), flush=True)

    def show_error(self, error: SwiftchatError) -> None:
        print_error(error, debug=self._state.config.debug)

    def ask(self, tool: Tool, call: ToolCall) -> Consent | None:
        """Ask until the answer is clear; an empty line and the end of the input mean no."""
        text = call.labeled(tool.label)
        is_cut = len(text) > _MAX_CHARACTERS
        question = f"allow this call? [y/N/a{'/s' if is_cut else ''}] "
        while True:
            reply = self._state.keyboard.ask(question)
            word = "no" if reply is None else reply.strip().lower()
            if word in _ANSWERS:
                return _ANSWERS[word]
            if word in ("", "n", "no"):
                return "no"
            if word == "s" and is_cut:
                print(sanitize(f"calls {text}"))
            else:
                write(f"{_CHOICES}{', s = show all of the call' if is_cut else ''}\n")
