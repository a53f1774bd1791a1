"""The rounds of a turn in which the model calls tools: questions to the user, calls, results."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.history.tool_call import ToolCall, well_formed
from swiftchat.chat.tools.connection import ServerError
from swiftchat.chat.tools.result import shortened
from swiftchat.chat.tools.tool import Action, Tool
from swiftchat.chat.tools.toolbox import Toolbox
from swiftchat.chat.turn.turn_view import TurnView
from swiftchat.errors import SwiftchatError

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
        try:
            told, action = self._allowed(tool, call)
            if action is None:
                return told
            with self.view.status.waiting(f"calling {tool.label}"):
                text = well_formed(action.run())  # names of files may have bytes that are no text
        except ServerError as error:
            self.view.show_error(error)
            return f"Error: {error.message}"
        except SwiftchatError as error:
            hint = "" if error.hint == error.default_hint else f"; {error.hint}"
            return str(well_formed(f"Error: {error.message}{hint}"))
        return told + shortened(text, self.max_characters(text))

    def _allowed(self, tool: Tool, call: ToolCall) -> tuple[str, Action | None]:
        """Return the action that is allowed, and what the model is told before its result.

        Without one this is the reason. The user may change the call first.
        """
        action, told = tool.prepare(call.arguments), ""
        self.view.show_action(action)
        while not self.toolbox.is_allowed(tool, self.conversation.id, action):
            match self.view.ask(tool, call, action):
                case None:
                    return _NOT_ALLOWED, None
                case "no":
                    return _REFUSED, None
                case "yes":
                    break
                case "always":
                    self.toolbox.allow_in(self.conversation.id, action)
                case ToolCall() as changed:
                    try:
                        action, call = tool.prepare(changed.arguments), changed
                    except SwiftchatError as error:
                        self.view.show_error(error)
                        continue
                    told = f"The user changed this call to {changed.text}\n"
                    self.view.show_action(action)
        return told, action
