"""A turn of a chat on the terminal, where the user can be asked."""

import shutil
from collections.abc import Callable
from typing import Protocol

from swiftchat.chat.history.conversation import Message
from swiftchat.chat.history.tool_call import ToolCall
from swiftchat.chat.model.answer import Answer
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.render.message_rows import call_rows
from swiftchat.chat.render.stats import slid_text, stats_line
from swiftchat.chat.render.style import Rows, Style
from swiftchat.chat.terminal.keyboard import Keyboard
from swiftchat.chat.terminal.output import write
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.chat.terminal.status_line import StatusLine
from swiftchat.chat.tools.toolbox import Tool
from swiftchat.chat.turn.turn_view import Consent, TurnView
from swiftchat.engine.api.protocol import Progress, Wait

_MAX_CHARACTERS = 2000  # of a call, before the user asks for all of it
_CHOICES = "y = yes, n = no, a = always in this conversation"
_ANSWERS: dict[str, Consent] = {"y": "yes", "yes": "yes", "a": "always", "always": "always"}


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

    def ask(self, tool: Tool, call: ToolCall) -> Consent:
        """Ask until the answer is clear; an empty line and the end of the input mean no."""
        text = call.labeled(tool.label)
        num_more = len(text) - _MAX_CHARACTERS
        is_cut = num_more > 0
        shown = f"{text[:_MAX_CHARACTERS]}… ({num_more} more characters)" if is_cut else text
        write(f"{sanitize(shown)}\n")
        question = f"allow this call? [y/N/a{'/s' if is_cut else ''}] "
        while True:
            reply = self._keyboard.ask(question)
            word = "no" if reply is None else reply.strip().lower()
            if word in _ANSWERS:
                return _ANSWERS[word]
            if word in ("", "n", "no"):
                return "no"
            if word == "s" and is_cut:
                write(f"{sanitize(text)}\n")
            else:
                write(f"{_CHOICES}{', s = show all of the call' if is_cut else ''}\n")

    def tell_round_limit(self, max_rounds: int) -> None:
        self.tell(f"the limit of {max_rounds} tool rounds is reached (/continue)")
