"""The turn of one prompt as text on stdout: for a pipe, or rendered on a terminal."""

import sys
import time
from collections.abc import Callable

from swiftchat.chat.history.conversation import Message
from swiftchat.chat.history.tool_call import ToolCall
from swiftchat.chat.model.answer import Answer
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.render.logprobs import as_terminal_text
from swiftchat.chat.render.stats import slid_text, stats_line, timeline
from swiftchat.chat.render.style import Style
from swiftchat.chat.terminal.output import print_notice, write
from swiftchat.chat.terminal.process_age import process_age_s
from swiftchat.chat.terminal.sanitize import sanitize, sanitize_prose
from swiftchat.chat.terminal.status_line import StatusLine
from swiftchat.chat.tools.result import shortened
from swiftchat.chat.tools.tool import BUILT_IN, Action, Tool
from swiftchat.chat.turn.turn_view import TurnView

_MAX_CHARACTERS = 500  # of a call on stderr


class TextView(TurnView):
    """A turn that asks the user nothing; calls of tools and warnings are on stderr.

    A pipe receives the exact text of the answer and a final newline. An answer of which only the
    code is wanted (-x), or that must be JSON, is printed when it is complete. `before_answer` is
    called before the first text of the answer.
    """

    def __init__(
        self,
        chat_model: ChatModel,
        config: ChatConfig,
        style: Style,
        status: StatusLine,
        before_answer: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(chat_model, config, style, status)
        self.warnings: list[str] = []
        self._before_answer = before_answer
        self._age_s = 0.0  # of the process when it requested the answer

    @property
    def is_json(self) -> bool:
        """Whether the answer is a JSON document."""
        form = self.chat_model.output_format
        return form is not None and form.is_json

    @property
    def _is_streamed(self) -> bool:
        """Whether the answer is shown while it is generated."""
        return not (self.config.extract or self.is_json)

    def begin(self, answer: Answer) -> None:
        self._age_s = process_age_s()
        if not self._is_streamed:
            self._answer = answer
            return
        if self._before_answer is not None and self._answer_view is None:
            self._before_answer()
        super().begin(answer)

    def close(self, note: str = "") -> None:
        answer = self._answer
        if answer is None or (answer.tool_calls and not answer.text):
            return
        super().close()
        if answer.logprobs and self._answer_view is not None:
            text = as_terminal_text(answer, self.chat_model.tokenizer, self.style)
            print(text, end="", file=sys.stderr)

    def _tell_limit(self, answer: Answer) -> None:
        if answer.num_slid:
            self.warn(slid_text(answer))
        if answer.limit == "max_tokens" and self.is_json:
            self.warn(f"answer ended at its token limit (-n {answer.params.max_tokens})")
        elif answer.limit == "loop":
            self.warn("answer ended because it repeats itself; --loop-stop off lets it go on")
        elif answer.limit == "context":
            size = self._info.ctx_size_tokens
            self.warn(
                f"answer ended at the context limit of {size} tokens; --ctx-size N changes it"
            )

    def end_turn(self, answer: Answer, reason: str, session_id: str | None) -> None:
        self._print_whole(answer, reason, session_id)
        if reason == "error":
            return
        if self.config.stats:
            self.tell(stats_line(answer, self._info, self._load_s, self._age_s))
        if self.config.debug:
            began = time.perf_counter() - process_age_s()
            phases = [*self.chat_model.engine.phases, *answer.phases]
            print(timeline(phases, began), file=sys.stderr)

    def _print_whole(self, answer: Answer, reason: str, session_id: str | None) -> None:
        """Print what is printed of a complete answer."""
        if self.config.extract:
            from swiftchat.chat.render.parse import code_blocks

            code = [block.code for block in code_blocks(answer.text)]
            write("".join(code))
            if not code:
                print_notice("warning: the answer has no code block")
        elif self.is_json and reason == "stop":
            is_exact = self.style.mode == "exact"
            write((answer.text if is_exact else sanitize_prose(answer.text)) + "\n")
        elif self.is_json:
            print(f"incomplete answer: {sanitize(answer.text)}", file=sys.stderr)

    def warn(self, text: str) -> None:
        self.warnings.append(text)
        super().warn(text)

    def show_call(self, label: str, call: ToolCall) -> None:
        if not self.config.quiet:
            self.status.clear()
            print_notice(shortened(f"calls {call.labeled(label)}", _MAX_CHARACTERS), "tool")

    def show_action(self, action: Action) -> None:
        if not self.config.quiet:
            for part, row in action.rows:
                print_notice(row, part)

    def show_result(self, message: Message) -> None:
        """Show nothing: the result is for the model."""

    def ask(self, tool: Tool, call: ToolCall, action: Action) -> None:
        """Refuse the call."""
        if action.warning:
            self.warn(f"{tool.label} was not called: {action.warning}, which needs a y in a chat")
            return
        option = "--allow-tool" if tool.source != BUILT_IN else "--tools"
        self.warn(f"{tool.label} was not called: {option} {tool.label} allows it")

    def tell_round_limit(self, max_rounds: int) -> None:
        self.warn(f"the limit of --max-tool-rounds {max_rounds} is reached")
