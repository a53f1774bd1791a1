"""The conversation in the terminal: read, answer, command, repeat."""

import os
import time
from typing import Any

from prompt_toolkit.formatted_text import StyleAndTextTuples

from swiftchat.chat.commands.registry import COMMANDS, Commands
from swiftchat.chat.commands.sessions import show_end
from swiftchat.chat.history.autosave import Autosave
from swiftchat.chat.history.conversation import Conversation, Message, title_of
from swiftchat.chat.model.answer import Answer
from swiftchat.chat.model.answer_saver import AnswerSaver
from swiftchat.chat.model.chat_model import ChatModel, chat_model_for
from swiftchat.chat.options.config import ChatConfig, files_text
from swiftchat.chat.render.stats import stats_line
from swiftchat.chat.render.style import choose_style, is_accessible, is_dumb
from swiftchat.chat.render.view import AnswerView, open_view, preload
from swiftchat.chat.repl.hints import Hints, hints_file
from swiftchat.chat.repl.input import InputLine
from swiftchat.chat.repl.message import message_of
from swiftchat.chat.repl.plain_input import PlainPrompt
from swiftchat.chat.terminal.echo import hide_typing
from swiftchat.chat.terminal.output import StatusLine, print_notice, write
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.engine.api.protocol import Prefill
from swiftchat.errors import ContextOverflow, SwiftchatError, UsageError

_TWICE_S = 2.0
_OVERFLOW_HINT = (
    "/compact puts a summary in place of old turns, /new begins anew; "
    "--ctx-size and --overflow drop-oldest at the start make room, too"
)


def run_repl(config: ChatConfig, conversation: Conversation, autosave: Autosave) -> int:
    """Find the model, begin to load it, and talk; the exit code."""
    before = files_text(config.file)
    with chat_model_for(config) as speaker:
        return Repl(speaker, config, conversation, before, autosave).run()


class Repl:
    """One conversation at the prompt.

    `before` goes before the first message: the files of `-f`. `io` are prompt_toolkit's `input`
    and `output`, for tests. What was typed but could not be answered comes back into the input
    line (`draft`), so that nothing is lost. `attached` goes before the next message.
    """

    def __init__(
        self,
        speaker: ChatModel,
        config: ChatConfig,
        conversation: Conversation,
        before: str = "",
        autosave: Autosave | None = None,
        **io: object,
    ) -> None:
        self.speaker = speaker
        self.config = config
        self.conversation = conversation
        self.autosave = autosave or Autosave(None, print_notice)
        self.attached = [before] if before else []
        self.draft = ""
        self.shell_output = ""
        self.last_answer: Answer | None = None
        self.commands = Commands(self)
        self._hints = Hints(None if config.quiet else hints_file(), print_notice)
        self._interrupted = float("-inf")
        self.style = choose_style(config, os.environ, at_terminal=True)
        self._is_accessible = is_accessible(config, os.environ)
        self._status = StatusLine(not self._is_accessible)
        self._view: AnswerView | None = None  # of the last answer
        self._prompt = self._input_line(io)

    def run(self) -> int:
        """Read and answer until the user leaves; the exit code. Whatever ends it, all is saved."""
        if not self.config.quiet:
            asked = {"tp": self.config.tp, "pp": self.config.pp}
            where = "".join(f" · --{name} {count}" for name, count in asked.items() if count != 1)
            if self.config.connect:
                where = f" · at {self.config.connect}"
            print_notice(f"swiftchat · {self.speaker.name}{where} · /? for help, Ctrl-D to leave")
            self._hints.show("start")
            for name in self.config.file if self.attached else ():
                print_notice(f"{name} goes before the first message")
        if self.conversation.tree:
            show_end(self)
        try:
            return self._talk()
        finally:
            self.autosave.finish(self.conversation)
            self.speaker.close()  # which need not be the one it began with

    def _talk(self) -> int:
        while True:
            try:
                text = self._read()
                if text.strip() and not self._obey_or_answer(text):
                    return 0
            except EOFError:
                return 0
            except KeyboardInterrupt:
                if self._twice():
                    return 130
                print_notice("Ctrl-D or /bye leaves")
            except SwiftchatError as error:
                self.report(error)

    def ask(self, message: str, typed: str) -> None:
        """Add a message and answer it; if nothing came of it, it is taken back and typed again."""
        before = self.conversation.tip
        self.conversation.title = self.conversation.title or title_of(typed)
        self.conversation.add("user", message)
        self._answer_or_restore(before, typed)

    def answer_again(self) -> None:
        """Give the last answer anew, with a new seed; the old one stays if nothing came of it."""
        before = self.conversation.tip
        self.conversation.pop_answer()
        self._answer_or_restore(before, "", new_seed=True)

    def go_on(self) -> None:
        """Go on with the last answer; as it was it stays in a branch of its own."""
        before = self.conversation.tip
        assert before is not None
        self.conversation.pop_answer()
        self._answer_or_restore(before, "", begun=before.content)

    def _answer_or_restore(
        self, before: Message | None, draft: str, new_seed: bool = False, begun: str = ""
    ) -> None:
        try:
            with hide_typing(self._pause):
                self._answer(new_seed, begun)
        except (SwiftchatError, KeyboardInterrupt):
            if self.conversation.tip and self.conversation.tip.role == "user":
                self.conversation.tip = before
                self.draft = draft
                self.autosave.save(self.conversation)
            raise

    def _answer(self, new_seed: bool, begun: str) -> None:
        """Answer the conversation's last message, streaming; Ctrl-C stops and keeps the part."""
        self.conversation.settings = self.speaker.settings
        self.autosave.save(self.conversation)
        preload(self.style)  # while the engine loads
        self._wait_ready()
        answer = self.speaker.answer(
            self.conversation, self._dropped, self._show_prefill, new_seed, begun
        )
        self.last_answer = answer
        saver = AnswerSaver(self.autosave, self.conversation, answer, begun)
        view, note = open_view(self.style, answer, self.speaker.name), ""
        self._view = view
        try:
            for piece in saver:
                self._status.clear()
                view.push(piece)
        except KeyboardInterrupt:
            self._status.clear()
            view.push(answer.interrupt())
            if not (answer.text or answer.reasoning):
                view.close()
                raise
            self._twice()
            note = "⏹ stopped"
        except SwiftchatError:
            self._status.clear()
            view.close()
            if answer.text or answer.reasoning:
                saver.end("error")
            raise
        self._status.clear()
        view.close(note)
        if begun and not answer.text:
            raise UsageError("the model has nothing to add", "/regen answers anew")
        saver.end(answer.finish_reason)
        write("\n")
        if note:
            self._hints.show("stopped")
        elif "```" in answer.text:
            self._hints.show("code")
        if answer.finish_reason == "length":
            print_notice(
                "the answer ends here: its limit of tokens is reached (/continue, /set max_tokens)"
            )
        if self.config.stats and self.speaker.engine.info:
            print_notice(stats_line(answer, self.speaker.engine.info.load_s))

    def show_status(self, label: str = "", done: int = 0, total: int = 1) -> None:
        """Write how far something is over the line before; without a label, erase it."""
        if label:
            self._status.show(label, done, total)
        else:
            self._status.clear()

    def report(self, error: SwiftchatError) -> None:
        """Show an error and its hint; the conversation goes on."""
        hint = _OVERFLOW_HINT if isinstance(error, ContextOverflow) else error.hint
        print_notice(f"error: {' '.join(error.message.split())}")
        if hint:
            print_notice(f"hint: {' '.join(hint.split())}")

    def _input_line(self, io: dict[str, object]) -> InputLine | PlainPrompt:
        if is_dumb(os.environ) and not io:
            return PlainPrompt()
        toolbar = None if self._is_accessible else self._toolbar
        is_vi = self.config.editing_mode == "vi"
        return InputLine(COMMANDS, self.commands.words, _history_file(), toolbar, is_vi, **io)

    def _read(self) -> str:
        draft, self.draft = self.draft, ""
        return self._prompt.prompt(default=draft, pre_run=self.speaker.prepare)

    def _obey_or_answer(self, text: str) -> bool:
        """Carry out a command or answer a message; False to leave."""
        if self.commands.is_command(text):
            return self.commands.run(text)
        message = message_of(text)
        if text.startswith("//") and "\n" not in text:
            message = message[1:]
        self.ask("\n\n".join((*self.attached, message)), text)
        self.attached = []
        return True

    def _pause(self) -> None:
        self._status.clear()
        if self._view is not None:
            self._view.pause()

    def _twice(self) -> bool:
        """Whether this is the second Ctrl-C within two seconds."""
        now = time.monotonic()
        before, self._interrupted = self._interrupted, now
        return now - before < _TWICE_S

    def _wait_ready(self) -> None:
        engine = self.speaker.engine
        was_ready = engine.info is not None
        try:
            self.speaker.wait_ready(
                lambda progress: self._status.show(progress.label, progress.done, progress.total)
            )
        finally:
            self._status.clear()
        if was_ready and self.speaker.engine is not engine:
            again = "attached to again" if self.config.connect else "started again"
            print_notice(f"the engine process had ended and was {again}")

    def _show_prefill(self, progress: Prefill) -> None:
        if progress.done < progress.total:
            self._status.show("reading the prompt", progress.done, progress.total)

    def _dropped(self, num_messages: int) -> None:
        print_notice(
            f"warning: the context is full: the oldest {num_messages} messages were left out"
        )

    def _toolbar(self) -> StyleAndTextTuples:
        engine, name = self.speaker.engine, sanitize(self.speaker.name)
        if engine.info is None:
            progress = engine.progress
            if progress is None:
                return [("", f" {name} · starting")]
            percent = 100 * progress.done // max(1, progress.total)
            return [("", f" {name} · {sanitize(progress.label)} {percent} %")]
        size, answer = engine.info.ctx_size_tokens, self.last_answer
        used = 0 if answer is None else answer.num_prompt_tokens + answer.num_tokens
        percent = 100 * used // size
        style = "fg:ansired" if percent >= 95 else "fg:ansiyellow" if percent >= 80 else ""
        speed = answer and answer.tokens_per_s
        topic = self.conversation.name or self.conversation.title
        return [
            ("", f" {name} · "),
            (style, f"ctx {_thousands(used)}/{_thousands(size)} ({percent} %)"),
            ("", f" · {speed:.0f} tok/s" if speed else ""),
            ("", f" · {sanitize(topic)}" if topic else ""),
        ]


def _thousands(num_tokens: int) -> str:
    return str(num_tokens) if num_tokens < 1000 else f"{num_tokens / 1000:.1f}k"


def _history_file() -> Any:
    import platformdirs

    return platformdirs.user_state_path("swiftchat") / "history"
