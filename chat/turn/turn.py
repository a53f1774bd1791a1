"""One turn: the message at the tip of a conversation is answered, in rounds of tools, and saved."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from swiftchat.chat.history.autosave import Autosave
from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.history.tool_call import ToolCall
from swiftchat.chat.model.answer import Answer
from swiftchat.chat.render.message_rows import STOPPED
from swiftchat.chat.tools.toolbox import Toolbox
from swiftchat.chat.turn.answer_saver import AnswerSaver
from swiftchat.chat.turn.model_tools import max_result_characters
from swiftchat.chat.turn.tool_rounds import ToolRounds
from swiftchat.chat.turn.turn_view import TurnView
from swiftchat.errors import UsageError


@dataclass(frozen=True)
class TurnEnd:
    """The last answer of a turn, and what ended the turn: `stop`, `length` or `interrupt`.

    With `is_stopped` Ctrl-C ended it while the answer was generated.
    """

    answer: Answer
    reason: str
    is_stopped: bool = False


class Turn:
    """Answers the message at the tip of a conversation, with the model of a view, which shows it.

    `answer` is the last one that was started. `next_answer` returns the one to show if several were
    started at once.
    """

    def __init__(
        self,
        view: TurnView,
        conversation: Conversation,
        autosave: Autosave,
        toolbox: Toolbox,
        next_answer: Callable[[], Answer] | None = None,
    ) -> None:
        self._chat_model = view.chat_model
        self._conversation = conversation
        self._autosave = autosave
        self._toolbox = toolbox
        self.answer: Answer | None = None
        self._has_saved = False
        self._view = view
        self._next_answer = next_answer

    def run(self, new_seed: bool = False, prefix: str = "") -> TurnEnd:
        """Answer; return how the turn ended. Ctrl-C ends it and keeps the partial answer.

        `new_seed` and `prefix` are those of `ChatModel.answer`. An error keeps the partial answer
        too, and is raised. A turn that ends after a call of a tool gets an empty answer, which
        /continue extends.
        """
        try:
            end = self._run(new_seed, prefix)
        except (Exception, KeyboardInterrupt) as error:
            self._end_rounds("interrupt" if isinstance(error, KeyboardInterrupt) else "error")
            raise
        self._end_rounds(end.reason)
        self._end_view(end.answer, end.reason)
        return end

    def _end_rounds(self, reason: str) -> None:
        """Add the empty answer of a turn that ends with a call of a tool."""
        tip = self._conversation.tip
        if tip is not None and tip.is_tool_round:
            self._conversation.add("assistant", "", reason)
            self._autosave.save(self._conversation)

    def _run(self, new_seed: bool, prefix: str) -> TurnEnd:
        self._wait_ready()
        config, self._chat_model.tools = self._chat_model.config, self._offered_tools()
        limits = config.max_tool_rounds, partial(max_result_characters, self._chat_model)
        rounds = ToolRounds(self._toolbox, self._conversation, self._view, *limits)
        while True:
            end = self._answer(new_seed, prefix)
            calls = [] if end.is_stopped else end.answer.tool_calls
            if not calls:
                return end
            prefix = ""
            goes_on = rounds.run(calls)
            self._autosave.save(self._conversation)
            self._chat_model.tools = self._offered_tools()  # a server may have ended
            if rounds.is_at_limit:
                self._view.tell_round_limit(rounds.max_rounds)
            if not goes_on:
                return TurnEnd(end.answer, "length" if rounds.is_at_limit else "interrupt")

    def _wait_ready(self) -> None:
        """Wait until the engine is loaded, and tell what there is to know about it."""
        chat_model, view = self._chat_model, self._view
        started = time.perf_counter()
        chat_model.prepare()
        view.preload()  # while the engine loads
        engine = chat_model.engine
        was_ready = engine.info is not None
        with view.status.waiting("loading the model"):
            info = chat_model.wait_ready(view.show_progress)
        chat_model.tell_notes()
        if was_ready and chat_model.engine is not engine:
            is_remote = chat_model.config.connect is not None
            view.tell(
                "the engine connection was lost and restored"
                if is_remote
                else "the engine process had ended and was restarted"
            )
        view.begin_turn(info, time.perf_counter() - started)

    def _offered_tools(self) -> list[dict[str, Any]]:
        """Return the tools that there are now for the chat template, [] if it takes none."""
        for server in self._toolbox.refresh(self._view.show_error):
            self._view.tell(f"the tools of {server} have changed")
        specs = self._toolbox.specs
        try:
            if specs:
                self._chat_model.prompts.require_tools()
        except UsageError as error:  # after /model
            self._view.tell(f"{error.message}; /tools off")
            return []
        return specs

    def _answer(self, new_seed: bool, prefix: str) -> TurnEnd:
        """Stream one answer into the view, and save it."""
        view = self._view
        with view.status.waiting("encoding the prompt"):
            if self._next_answer is not None:
                answer = self._next_answer()
            else:
                answer = self._chat_model.answer(
                    self._conversation, view.warn_dropped, view.show_wait, new_seed, prefix
                )
        self.answer = answer
        saver = AnswerSaver(self._autosave, self._conversation, answer, prefix)
        view.begin(answer)
        view.status.show("waiting for the engine")
        is_stopped = False
        try:
            for piece in saver:
                view.push(piece)
        except KeyboardInterrupt:
            view.push(answer.interrupt())
            is_stopped = True
        except Exception:
            answer.interrupt()
            if answer.text or answer.reasoning:
                self._save(saver, "error")
            view.close()
            self._end_view(answer, "error")
            raise
        finally:
            view.status.clear()
        view.close(STOPPED if is_stopped and (answer.text or answer.reasoning) else "")
        calls: list[ToolCall] = [] if is_stopped else answer.tool_calls
        if prefix and not (is_stopped or answer.text or calls):
            raise UsageError("the model added no text", "/regen answers the last message again")
        reason = answer.finish_reason or "interrupt"
        if reason != "interrupt" or answer.text or answer.reasoning:
            self._save(saver, reason)
            view.end(answer, is_stopped)
        return TurnEnd(answer, reason, is_stopped)

    def _end_view(self, answer: Answer, reason: str) -> None:
        is_saved = self._has_saved and self._autosave.is_saving
        self._view.end_turn(answer, reason, self._conversation.id if is_saved else None)

    def _save(self, saver: AnswerSaver, reason: str) -> None:
        saver.finish(reason)
        self._has_saved = True
