"""A turn of a chat on the terminal, where the user can be asked."""

import json
import shutil
from collections.abc import Callable
from typing import Protocol

from swiftchat.chat.history.conversation import Message
from swiftchat.chat.history.tool_call import ToolCall, arguments_of
from swiftchat.chat.model.answer import Answer
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.render.message_rows import call_rows
from swiftchat.chat.render.stats import slid_text, stats_line
from swiftchat.chat.render.style import Rows, Style
from swiftchat.chat.terminal.consent import ask_consent, changed_by_user
from swiftchat.chat.terminal.keyboard import Keyboard
from swiftchat.chat.terminal.output import write
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.chat.terminal.status_line import StatusLine
from swiftchat.chat.tools.tool import Action, Tool
from swiftchat.chat.turn.turn_view import Consent, TurnView
from swiftchat.engine.api.protocol import Progress, Wait
from swiftchat.errors import UsageError

_MAX_CHARACTERS, _MAX_ROWS = 2000, 60  # of a call, before the user asks for all of it
_ANSWERS: dict[str, Consent] = {"y": "yes", "n": "no", "a": "always"}


class Queue(Protocol):
    """What the user has typed meanwhile."""

    def rows(self, columns: int) -> Rows:
        """Return rows that show it, of at most so many columns."""

    def attend(self, pause: Callable[[], None]) -> None:
        """Do what need not wait for the answer; `pause` erases the rows that are redrawn."""


class ChatView(TurnView):
    """The turns of a chat. `hint` shows a hint by its name."""

    def __init__(
        self,
        chat_model: ChatModel,
        config: ChatConfig,
        style: Style,
        status: StatusLine,
        keyboard: Keyboard,
        hint: Callable[[str], None],
        queue: Queue,
    ) -> None:
        super().__init__(chat_model, config, style, status)
        self._keyboard = keyboard
        self._hint = hint
        self._queue = queue

    def rows_below(self, columns: int) -> Rows:
        return [*super().rows_below(columns), *self._queue.rows(columns)]

    def show_progress(self, progress: Progress) -> None:
        super().show_progress(progress)
        self._attend()

    def show_wait(self, wait: Wait) -> None:
        super().show_wait(wait)
        self._attend()

    def push(self, piece: str) -> None:
        super().push(piece)
        self._attend()

    def _attend(self) -> None:
        if self.style.is_rendered:  # otherwise the cursor is in the middle of a line
            self._queue.attend(self.pause)

    def end(self, answer: Answer, is_stopped: bool) -> None:
        if answer.text or is_stopped or not answer.tool_calls:
            write("\n")
        if is_stopped:
            self._hint("stopped")
        elif "```" in answer.text:
            self._hint("code")
        super().end(answer, is_stopped)
        if self.config.stats:
            self.tell(stats_line(answer, self._info, self._info.load_s))

    def end_turn(self, answer: Answer, reason: str, session_id: str | None) -> None:
        """Show nothing: the next prompt follows."""

    def _tell_limit(self, answer: Answer) -> None:
        if answer.num_slid:
            self.tell(slid_text(answer))
        if answer.limit == "max_tokens":
            self._hint("length")
        elif answer.limit == "loop":
            self.tell(
                "the answer ended because it repeats itself: /regen answers again, "
                "/set loop_stop off lets it go on"
            )
        elif answer.limit == "context":
            self.tell(
                f"the answer ended at the context limit of {self._info.ctx_size_tokens} "
                "tokens: /compact makes room, /set ctx_size N changes the limit"
            )

    def show_call(self, label: str, call: ToolCall) -> None:
        """Show nothing: the result follows, and before it a question if the user must allow it."""

    def show_result(self, message: Message) -> None:
        self.status.clear()
        width = shutil.get_terminal_size().columns
        for call in message.tool_calls:
            rows = call_rows(self.style, call.text, message, width)
            write("".join(f"{row}\n" for row in rows))

    def show_action(self, action: Action) -> None:
        self.status.clear()
        rows = action.rows[:_MAX_ROWS]
        write("".join(f"{self.style.paint(part, sanitize(row))}\n" for part, row in rows))
        if (num_more := len(action.rows) - len(rows)) > 0:
            write(f"… {num_more} more lines\n")

    def ask(self, tool: Tool, call: ToolCall, action: Action) -> Consent | ToolCall:
        """Ask until the answer is clear; an empty line and the end of the input mean no."""
        text = call.labeled(tool.label)
        is_cut = len(action.rows) > _MAX_ROWS
        if not action.rows:
            num_more = len(text) - _MAX_CHARACTERS
            is_cut = num_more > 0
            cut = f"{text[:_MAX_CHARACTERS]}… ({num_more} more characters)"
            write(f"{sanitize(cut if is_cut else text)}\n")
        if action.warning:
            write(self.style.paint("error", sanitize(action.warning)) + "\n")
        choices = {
            "y": "yes",
            "n": "no",
            **({} if action.warning else {"a": "always in this conversation"}),
            "e": "edit it first",
            **({"s": "show all of it"} if is_cut else {}),
        }
        while True:
            letter = ask_consent(self._keyboard, "allow this call?", choices)
            if letter in _ANSWERS:
                return _ANSWERS[letter]
            if letter == "s":
                rows = [row for _, row in action.rows] or [text]
                write("".join(f"{sanitize(row)}\n" for row in rows))
            elif (changed := self._changed(tool, call)) is not None:
                return changed

    def _changed(self, tool: Tool, call: ToolCall) -> ToolCall | None:
        """Return the call as the user has changed it, None if it stays."""
        name, arguments = tool.edited, call.arguments
        text = str(arguments.get(name, "")) if name else json.dumps(arguments, ensure_ascii=False)
        try:
            changed = changed_by_user(self._keyboard, text)
            if changed in (None, text):
                return None
            found = {**arguments, name: changed} if name else arguments_of(changed)
            if found is None:
                raise UsageError("the arguments are no JSON object", "e changes them again")
        except UsageError as error:
            self.show_error(error)
            return None
        return ToolCall(call.name, found, call.id)

    def tell_round_limit(self, max_rounds: int) -> None:
        self.tell(f"the limit of {max_rounds} tool rounds is reached (/continue)")
