"""What a turn shows: waits, answers, notices, calls of tools. Everything that a turn draws is here.

`TurnView` is what all faces of a turn share; a chat on the terminal, a text on stdout and JSON are
in the files beside it.
"""

from abc import ABC, abstractmethod
from typing import Literal

from swiftchat.chat.history.conversation import Message
from swiftchat.chat.history.tool_call import ToolCall
from swiftchat.chat.model.answer import Answer
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.render.stats import running_text
from swiftchat.chat.render.style import Rows, Style
from swiftchat.chat.render.view import AnswerView, open_view, preload, show
from swiftchat.chat.terminal.error_report import print_error
from swiftchat.chat.terminal.output import print_notice, write
from swiftchat.chat.terminal.status_line import StatusLine
from swiftchat.chat.tools.tool import Action, Tool
from swiftchat.engine.api.protocol import EngineInfo, Progress, Wait
from swiftchat.errors import SwiftchatError

Consent = Literal["yes", "no", "always"]


class TurnView(ABC):
    """One face of a turn that `chat_model` answers.

    `style` is that of the answers, `status` the line that says what the program waits for.

    `begin`, `push` and `close` surround the pieces of each answer; `end` follows when it is saved.
    `begin_turn` and `end_turn` surround all of them.
    """

    def __init__(
        self, chat_model: ChatModel, config: ChatConfig, style: Style, status: StatusLine
    ) -> None:
        self.chat_model = chat_model
        self.config = config
        self.style = style
        self.status = status
        self._answer: Answer | None = None
        self._answer_view: AnswerView | None = None

    def preload(self) -> None:
        """Import what the answers need."""
        preload(self.style)

    def begin_turn(self, info: EngineInfo, load_s: float) -> None:
        """Take what is known of the engine, for which the turn has waited."""
        self._info, self._load_s = info, load_s

    def show_progress(self, progress: Progress) -> None:
        """Show how far the engine is loaded."""
        self.status.show_progress(progress)

    def show_wait(self, wait: Wait) -> None:
        """Show what a generation without text reports."""
        self.status.show_wait(wait)

    def begin(self, answer: Answer) -> None:
        """Show that an answer begins."""
        self._answer = answer
        self._answer_view = open_view(self.style, answer, self.chat_model.name, self.rows_below)

    def rows_below(self, columns: int) -> Rows:
        """Return what stands below an answer that is generated, in rows of so many columns."""
        return [("notice", running_text(self._answer, columns))] if self._answer else []

    def push(self, piece: str) -> None:
        """Show a piece of the answer; an empty one while the text of a call is held back."""
        answer, view = self._answer, self._answer_view
        if not piece:
            if answer is not None and answer.is_in_call:
                if view is not None:
                    view.pause()
                self.status.show(f"calling a tool, {answer.num_tokens} tokens")
            return
        self.status.clear()
        if view is not None:
            view.push(piece)

    def pause(self) -> None:
        """Erase temporary output, for example before the program is suspended."""
        self.status.clear()
        if self._answer_view is not None:
            self._answer_view.pause()

    def close(self, note: str = "") -> None:
        """Show what is left of the answer, and a note on why it ended."""
        self.status.clear()
        if self._answer_view is not None:
            self._answer_view.close(note)

    def end(self, answer: Answer, is_stopped: bool) -> None:
        """Tell what there is to say about a saved answer. `is_stopped` by Ctrl-C."""
        self._tell_limit(answer)
        for warning in answer.result.warnings if answer.result else ():
            self.warn(warning)

    @abstractmethod
    def _tell_limit(self, answer: Answer) -> None:
        """Tell what was dropped for the answer, and what ended it early."""

    @abstractmethod
    def end_turn(self, answer: Answer, reason: str, session_id: str | None) -> None:
        """Show what comes after the last answer; `reason` is `error` if an error ended it.

        `session_id` is that of the conversation if an answer was saved.
        """

    def tell(self, text: str) -> None:
        """Show a notice."""
        self.status.clear()
        print_notice(text)

    def warn(self, text: str) -> None:
        """Show a warning."""
        self.tell(f"warning: {text}")

    def warn_dropped(self, num_messages: int) -> None:
        """Warn that the context had no room for the oldest messages."""
        self.warn(f"the context is full: the oldest {num_messages} messages were left out")

    def show_error(self, error: SwiftchatError) -> None:
        """Show an error that does not end the turn."""
        self.status.clear()
        print_error(error, debug=self.config.debug)

    @abstractmethod
    def show_call(self, label: str, call: ToolCall) -> None:
        """Show a call of the tool with this label."""

    @abstractmethod
    def show_action(self, action: Action) -> None:
        """Show what a call will do, before it is made."""

    @abstractmethod
    def show_result(self, message: Message) -> None:
        """Show the result of a call."""

    @abstractmethod
    def ask(self, tool: Tool, call: ToolCall, action: Action) -> Consent | ToolCall | None:
        """Ask whether a call is allowed; None: the user cannot be asked.

        Another call is what the user has made of it, about which to ask again.
        """

    @abstractmethod
    def tell_round_limit(self, max_rounds: int) -> None:
        """Tell that the model may call no more tools in this turn."""


def show_heading(style: Style, name: str) -> None:
    """Show a name above one of several answers; for screen readers the answer begins with one."""
    if style.mode != "accessible":
        show(style, f"## {name}\n", name)
        write("\n")
