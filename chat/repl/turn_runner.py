"""The turns of a chat at the prompt: send a message, answer again, continue, compare."""

import time

from swiftchat.chat.attachments.attachment import without_attachments
from swiftchat.chat.history.conversation import Message, title_of
from swiftchat.chat.history.transcript import author
from swiftchat.chat.repl.hints import Hints
from swiftchat.chat.repl.line_queue import LineQueue
from swiftchat.chat.repl.message import message_of
from swiftchat.chat.slash.state import ChatState
from swiftchat.chat.terminal.announcements import Announcements
from swiftchat.chat.terminal.output import print_notice, write
from swiftchat.chat.turn.chat_view import ChatView
from swiftchat.chat.turn.turn import Turn
from swiftchat.chat.turn.turn_view import show_heading

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

    def __init__(
        self,
        state: ChatState,
        hints: Hints,
        interrupts: InterruptTimer,
        announcements: Announcements,
        queue: LineQueue,
    ) -> None:
        self._state = state
        self._queue = queue
        self._announcements = announcements
        self._hints = hints
        self._interrupts = interrupts

    def send(self, message: str, typed: str, edited: Message | None = None) -> None:
        """Add a message and answer it, in place of `edited` if given.

        Without an answer `typed` becomes the draft, and the next message does the same.
        """
        conversation = self._state.conversation
        old_tip, old_title = conversation.tip, conversation.title
        if edited is not None:
            conversation.tip = edited.parent
        if conversation.tip is None or not conversation.title:
            conversation.title = title_of(without_attachments(message_of(typed)) or typed)
        conversation.add("user", message)
        self._separate()
        conversation.is_one_shot = False
        try:
            self._answer_or_restore(old_tip, typed)
        except (Exception, KeyboardInterrupt):
            if conversation.tip is old_tip:
                self._state.edited = edited
                conversation.title = old_title or conversation.title
                self._state.save()
            raise

    def regenerate(self) -> None:
        """Answer again; the old answer stays in a branch."""
        self._separate()
        self._regenerate(new_seed=True)

    def continue_answer(self) -> None:
        """Extend the last answer; the shorter one stays in a branch."""
        old_tip = self._state.conversation.tip
        assert old_tip is not None
        self._separate()
        self._state.conversation.tip = old_tip.parent
        self._answer_or_restore(old_tip, "", prefix=old_tip.content)

    def compare(self) -> None:
        """Show the last answer again, then answer its question with `ChatState.compared`.

        The other answer becomes a branch. A model that was unloaded for the comparison loads again.
        """
        from swiftchat.chat.render.markdown_view import terminal_size
        from swiftchat.chat.render.reprint import conversation_rows, last_turns

        state = self._state
        other, answer = state.compared, state.conversation.tip
        assert other is not None and answer is not None
        _, *shown = last_turns(state.conversation.messages, 1)
        try:
            show_heading(state.style, author(answer))
            rows = conversation_rows(state.style, shown, terminal_size()[0])
            write("".join(f"{row}\n" for row in rows))
            show_heading(state.style, other.name)
            with state.comparing(other):
                self._regenerate(new_seed=False)
                new_tip = state.conversation.tip
        finally:
            if state.chat_model.is_closed:
                state.close_compared()
                state.chat_model.restart()
        if new_tip is not None and new_tip is not answer:
            number = state.conversation.branches().index(new_tip) + 1
            print_notice(
                "the conversation continues with the first answer; "
                f"/switch {number} takes the second"
            )

    def _separate(self) -> None:
        """Write the blank row between a question and its answer; a screen reader reads none."""
        if self._state.style.mode != "accessible":
            write("\n")

    def _regenerate(self, new_seed: bool) -> None:
        old_tip = self._state.conversation.tip
        self._state.conversation.pop_answer()
        self._answer_or_restore(old_tip, "", new_seed=new_seed)

    def _answer_or_restore(
        self, old_tip: Message | None, draft: str, new_seed: bool = False, prefix: str = ""
    ) -> None:
        """Answer the message at the tip; without an answer `old_tip` is the tip again."""
        state = self._state
        try:
            self._answer(new_seed, prefix)
        except (Exception, KeyboardInterrupt):
            tip = state.conversation.tip
            if tip and tip.role == "user":
                state.conversation.tip = old_tip
                state.draft = draft
                state.save()
            raise

    def _answer(self, new_seed: bool, prefix: str) -> None:
        """Run a turn. Raises `KeyboardInterrupt` if it was stopped before its first text."""
        state = self._state
        chat_model, conversation = state.chat_model, state.conversation
        conversation.settings = chat_model.settings
        state.save()
        view = ChatView(
            chat_model,
            state.config,
            state.style,
            state.status,
            state.keyboard,
            self._hints.show,
            self._queue,
        )
        turn = Turn(view, conversation, state.autosave, state.toolbox)
        began_s = time.monotonic()
        try:
            with state.keyboard.erasing(view.pause):
                end = turn.run(new_seed, prefix)
        finally:
            state.last_answer = turn.answer or state.last_answer
            seconds = time.monotonic() - began_s
            self._announcements.end_answer(seconds, conversation.name or conversation.title)
        if end.is_stopped:
            if not (end.answer.text or end.answer.reasoning):
                raise KeyboardInterrupt
            self._interrupts.record()
            self._queue.hold()
