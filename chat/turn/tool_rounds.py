"""The rounds of a turn in which the model calls tools: questions to the user, calls, results."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.history.tool_call import ToolCall
from swiftchat.chat.tools.connection import ServerError
from swiftchat.chat.tools.result import shortened
from swiftchat.chat.tools.toolbox import Toolbox
from swiftchat.chat.turn.turn_view import TurnView

_REFUSED = "The user did not allow this call."
_NOT_ALLOWED = "Refused: the user cannot be asked, and has not allowed the tool in advance."
_UNKNOWN = "There is no such tool."
_CANCELED = "The user canceled this call."
_LIMIT = "Not called: this turn has reached its limit of tool rounds."


@dataclass
class ToolRounds:
    """Makes the calls of one turn and adds their results to the conversation.

    `max_characters` returns how much of a text may be given to the model.
    """

    toolbox: Toolbox
    conversation: Conversation
    view: TurnView
    max_rounds: int
    max_characters: Callable[[str], int]
    num_rounds: int = field(default=0, init=False)

    @property
    def is_at_limit(self) -> bool:
        """Whether the turn ends here, although the model wants to call tools."""
        return self.num_rounds > self.max_rounds

    def run(self, calls: Sequence[ToolCall]) -> bool:
        """Make the calls; return whether the model should go on.

        Ctrl-C cancels the call that runs and those that follow. Each call gets a result.
        """
        self.num_rounds += 1
        is_canceled = False
        for call in calls:
            if is_canceled or self.is_at_limit:
                text = _CANCELED if is_canceled else _LIMIT
            else:
                try:
                    text = self._result(call)
                except KeyboardInterrupt:
                    is_canceled, text = True, _CANCELED
            self.view.show_result(self.conversation.add_tool_result(call, text))
        return not (is_canceled or self.is_at_limit)

    def _result(self, call: ToolCall) -> str:
        tool = self.toolbox.tools.get(call.name)
        self.view.show_call(tool.label if tool else call.name, call)
        if tool is None:
            return _UNKNOWN
        if not self.toolbox.is_allowed(tool, self.conversation.id):
            consent = self.view.ask(tool, call)
            if consent in ("no", None):
                return _REFUSED if consent else _NOT_ALLOWED
            if consent == "always":
                self.toolbox.allow_in(self.conversation.id, tool)
        try:
            with self.view.status.waiting(f"calling {tool.label}"):
                text = self.toolbox.call(tool, call.arguments)
            return shortened(text, self.max_characters(text))
        except ServerError as error:
            self.view.show_error(error)
            return f"Error: {error.message}"
