"""One turn at the prompt: wait for the engine, stream the answer, save it."""

import time
from functools import partial

from swiftchat.chat.commands.state import ChatState
from swiftchat.chat.history.conversation import Message, title_of
from swiftchat.chat.history.tool_call import ToolCall
from swiftchat.chat.model.answer import Answer
from swiftchat.chat.model.answer_saver import AnswerSaver
from swiftchat.chat.model.tools import max_result_characters
from swiftchat.chat.render.stats import slid_text, stats_line
from swiftchat.chat.render.view import AnswerView, open_view, preload
from swiftchat.chat.repl.hints import Hints
from swiftchat.chat.repl.message import message_of
from swiftchat.chat.repl.tool_view import ToolView
from swiftchat.chat.terminal.output import print_notice, write
from swiftchat.chat.tools.rounds import ToolRounds
from swiftchat.errors import UsageError

_DOUBLE_INTERRUPT_S = 2.0


class InterruptTimer:
    """Recognizes two Ctrl-C within two seconds."""

    def __init__(self) -> None:
        self._last_s = float("-inf")

    def record(self) -> bool:
        """Record a Ctrl-C; return whether the previous one was less than two seconds ago."""
        now = time.monotonic()
        before, self._last_s = self._last_s, now
        return now - before < _DOUBLE_INTERRUPT_S


class TurnRunner:
    """Answers the conversation of a chat on the terminal."""

    def __init__(self, state: ChatState, hints: Hints, interrupts: InterruptTimer) -> None:
        self._state = state
        self._hints = hints
        self._interrupts = interrupts
        self._view: AnswerView | None = None  # of the last answer

    def send(self, message: str, typed: str, edited: Message | None = None) -> None:
        """Add a message and answer it, in place of `edited` if given.

        Without an answer `typed` becomes the draft, and the next message does the same.
        """
        conversation = self._state.conversation
        old_tip = conversation.tip
        if edited is not None:
            conversation.tip = edited.parent
        if conversation.tip is None or not conversation.title:
            # An earlier first message had no answer, or is not on this path.
            conversation.title = title_of(message_of(typed))
        conversation.add("user", message)
        try:
            self._answer_or_restore(old_tip, typed)
        except (Exception, KeyboardInterrupt):
            if conversation.tip is old_tip:
                self._state.edited = edited
            raise

    def regenerate(self, new_seed: bool = True) -> None:
        """Answer again; the old answer stays in a branch."""
        old_tip = self._state.conversation.tip
        self._state.conversation.pop_answer()
        self._answer_or_restore(old_tip, "", new_seed=new_seed)

    def continue_answer(self) -> None:
        """Extend the last answer; the shorter one stays in a branch."""
        old_tip = self._state.conversation.tip
        assert old_tip is not None
        self._state.conversation.tip = old_tip.parent
        self._answer_or_restore(old_tip, "", prefix=old_tip.content)

    def _answer_or_restore(
        self, old_tip: Message | None, draft: str, new_seed: bool = False, prefix: str = ""
    ) -> None:
        state = self._state
        try:
            with state.keyboard.erasing(self._pause):
                self._answer(new_seed, prefix)
        except (Exception, KeyboardInterrupt) as error:
            tip = state.conversation.tip
            if tip and tip.role == "user":
                state.conversation.tip = old_tip
                state.draft = draft
                state.save()
            elif tip and tip.is_tool_round:
                self._end_turn("interrupt" if isinstance(error, KeyboardInterrupt) else "error")
            raise

    def _end_turn(self, reason: str) -> None:
        """End a turn after a call of a tool: with an empty answer, which /continue extends."""
        self._state.conversation.add("assistant", "", reason)
        self._state.save()

    def _answer(self, new_seed: bool, prefix: str) -> None:
        """Answer the last message, with as many rounds of tools as the model asks for."""
        state = self._state
        state.conversation.settings = state.chat_model.settings
        state.save()
        preload(state.style)  # while the engine loads
        self._wait_ready()
        rounds = self._tool_rounds()
        while calls := self._answer_once(new_seed, prefix):
            prefix = ""
            goes_on = rounds.run(calls)
            state.save()
            self._offer_tools()  # a server may have ended
            if rounds.is_at_limit:
                print_notice(f"the limit of {rounds.max_rounds} tool rounds is reached (/continue)")
            if not goes_on:
                self._end_turn("length" if rounds.is_at_limit else "interrupt")
                return

    def _tool_rounds(self) -> ToolRounds:
        state = self._state
        self._offer_tools()
        limits = state.config.max_tool_rounds, partial(max_result_characters, state.chat_model)
        return ToolRounds(state.toolbox, state.conversation, ToolView(state), *limits)

    def _offer_tools(self) -> None:
        """Give the model the tools that there are now."""
        chat_model, specs = self._state.chat_model, self._state.toolbox.specs
        try:
            if specs:
                chat_model.prompts.require_tools()
        except UsageError as error:  # after /model
            print_notice(f"{error.message}; /tools off")
            specs = []
        chat_model.tools = specs

    def _answer_once(self, new_seed: bool, prefix: str) -> list[ToolCall]:
        """Stream one answer and return the calls in it.

        Ctrl-C stops it and keeps the partial answer.
        """
        state, chat_model = self._state, self._state.chat_model
        with state.status.waiting("encoding the prompt"):
            answer = chat_model.answer(
                state.conversation, self._warn_dropped, state.status.show_wait, new_seed, prefix
            )
        state.last_answer = answer
        saver = AnswerSaver(state.autosave, state.conversation, answer, prefix)
        self._view = open_view(state.style, answer, chat_model.name)
        was_stopped = self._stream(answer, saver, self._view)
        calls = [] if was_stopped else answer.tool_calls
        if prefix and not (answer.text or calls):
            raise UsageError("the model added no text", "/regen answers the last message again")
        saver.finish(answer.finish_reason)
        if answer.text or not calls:
            write("\n")
        if was_stopped:
            self._hints.show("stopped")
        elif "```" in answer.text:
            self._hints.show("code")
        self._show_limit(answer)
        for warning in answer.result.warnings if answer.result else ():
            print_notice(f"warning: {warning}")
        if state.config.stats and chat_model.engine.info:
            print_notice(stats_line(answer, chat_model.engine.info, chat_model.engine.info.load_s))
        return calls

    def _show_limit(self, answer: Answer) -> None:
        """Print what was dropped for the answer, what ended it early, and what continues it."""
        if answer.num_slid:
            print_notice(slid_text(answer))
        if answer.limit == "max_tokens":
            print_notice(
                f"the answer ended at max_tokens = {answer.params.max_tokens}: /continue extends "
                "it, /set max_tokens off removes the limit"
            )
        elif answer.limit == "context":
            print_notice(
                f"the answer ended at the context limit of {self._state.chat_model.context_tokens} "
                "tokens: /compact makes room, /set ctx_size N changes the limit"
            )

    def _stream(self, answer: Answer, saver: AnswerSaver, view: AnswerView) -> bool:
        """Show an answer as it arrives; return whether Ctrl-C stopped it.

        Raises `KeyboardInterrupt` if it was stopped before its first text.
        """
        note = ""
        self._state.status.show("waiting for the engine")
        try:
            for piece in saver:
                if answer.is_in_call and not piece:
                    view.pause()
                    self._state.status.show(f"calling a tool, {answer.num_tokens} tokens")
                else:
                    self._state.status.clear()
                    view.push(piece)
        except KeyboardInterrupt:
            self._state.status.clear()
            view.push(answer.interrupt())
            if not (answer.text or answer.reasoning):
                view.close()
                raise
            self._interrupts.record()
            note = "⏹ stopped"
        except Exception:
            self._state.status.clear()
            answer.interrupt()
            if answer.text or answer.reasoning:
                saver.finish("error")
            view.close()
            raise
        self._state.status.clear()
        view.close(note)
        return bool(note)

    def _pause(self) -> None:
        """Erase temporary output before the program is suspended."""
        self._state.status.clear()
        if self._view is not None:
            self._view.pause()

    def _wait_ready(self) -> None:
        chat_model, status = self._state.chat_model, self._state.status
        engine = chat_model.engine
        was_ready = engine.info is not None
        with status.waiting("loading the model"):
            chat_model.wait_ready(
                lambda progress: status.show(progress.label, progress.done, progress.total)
            )
        chat_model.tell_notes()
        if was_ready and chat_model.engine is not engine:
            if self._state.config.connect:
                print_notice("the engine connection was lost and restored")
            else:
                print_notice("the engine process had ended and was restarted")

    def _warn_dropped(self, num_messages: int) -> None:
        self._state.status.clear()
        print_notice(
            f"warning: the context is full: the oldest {num_messages} messages were left out"
        )
