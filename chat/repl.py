"""The conversation in the terminal: read, answer, command, repeat."""

import sys
import time
from collections.abc import Callable
from typing import Any

from swiftchat.chat.answer import Answer
from swiftchat.chat.commands import COMMANDS, Commands
from swiftchat.chat.config import ChatConfig
from swiftchat.chat.conversation import Conversation
from swiftchat.chat.gate import visible
from swiftchat.chat.oneshot import stats_line, write
from swiftchat.chat.prompt import build_prompt, message_of
from swiftchat.chat.speaker import Speaker
from swiftchat.engine.protocol import Prefill, Progress
from swiftchat.errors import SwiftchatError

_TWICE_S = 2.0


def run_repl(config: ChatConfig) -> int:
    """Find the model, begin to load it, and talk; the exit code."""
    from swiftchat.chat.models import find_model

    conversation = Conversation(config.system_text())
    path = find_model(config.model, offline=config.offline, quiet=config.quiet)
    with Speaker(path, config) as speaker:
        return Repl(speaker, config, conversation).run()


class Repl:
    """One conversation at the prompt.

    `io` are prompt_toolkit's `input` and `output`, for tests. What was typed but could not be
    answered comes back into the input line, so that nothing is lost.
    """

    def __init__(self, speaker: Speaker, config: ChatConfig, conversation: Conversation,
                 **io: object) -> None:  # fmt: skip
        self.speaker = speaker
        self.config = config
        self.conversation = conversation
        self.last_answer: Answer | None = None
        self.commands = Commands(self)
        self._interrupted = float("-inf")
        self._draft = ""
        self._prompt = build_prompt(COMMANDS, _history_file(), self._toolbar, **io)

    def run(self) -> int:
        """Read and answer until the user leaves; the exit code."""
        if not self.config.quiet:
            say(f"swiftchat · {self.speaker.name} · /? for help, Ctrl-D to leave")
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
                say("Ctrl-D or /bye leaves")
            except SwiftchatError as error:
                self.report(error)

    def answer(self) -> None:
        """Answer the conversation's last message, streaming; Ctrl-C stops and keeps the part."""
        message = self.conversation.messages[-1].content
        try:
            self._wait_ready()
            answer = self.speaker.answer(self.conversation, self._dropped, _show_prefill())
        except (SwiftchatError, KeyboardInterrupt):
            self._take_back(message)
            raise
        self.last_answer = answer
        try:
            for piece in answer:
                write(visible(piece))
        except KeyboardInterrupt:
            self._twice()
            write(visible(answer.interrupt()) + " ⏹ stopped")
        except SwiftchatError:
            write("\n")
            if answer.text:
                self.conversation.add("assistant", answer.text, interrupted=True)
            else:
                self._take_back(message)
            raise
        write("\n" if answer.text.endswith("\n") else "\n\n")
        self.conversation.add("assistant", answer.text, answer.finish_reason == "interrupt")
        if answer.finish_reason == "length":
            say("the answer ends here: its limit of tokens is reached (/set max_tokens)")
        if self.config.stats and self.speaker.engine.info:
            say(stats_line(answer, self.speaker.engine.info.load_s))

    def report(self, error: SwiftchatError) -> None:
        """Show an error and its hint; the conversation goes on."""
        say(f"error: {' '.join(error.message.split())}")
        if error.hint:
            say(f"hint: {' '.join(error.hint.split())}")

    def _read(self) -> str:
        draft, self._draft = self._draft, ""
        return self._prompt.prompt(default=draft, pre_run=self.speaker.prepare)

    def _obey_or_answer(self, text: str) -> bool:
        """Carry out a command or answer a message; False to leave."""
        if self.commands.is_command(text):
            return self.commands.run(text)
        message = message_of(text)
        self.conversation.add("user", message.removeprefix("/") if text[:2] == "//" else message)
        self.answer()
        return True

    def _take_back(self, message: str) -> None:
        self.conversation.messages.pop()
        self._draft = message

    def _twice(self) -> bool:
        """Whether this is the second Ctrl-C within two seconds."""
        now = time.monotonic()
        before, self._interrupted = self._interrupted, now
        return now - before < _TWICE_S

    def _wait_ready(self) -> None:
        if self.speaker.engine.info is not None:
            self.speaker.wait_ready()
            return
        shown = False

        def show(progress: Progress) -> None:
            nonlocal shown
            shown = True
            percent = 100 * progress.done // max(1, progress.total)
            write(f"\r\x1b[K{visible(progress.label)} {percent} %")

        try:
            self.speaker.wait_ready(show)
        finally:
            if shown:
                write("\r\x1b[K")

    def _dropped(self, num_messages: int) -> None:
        say(f"warning: the context is full: the oldest {num_messages} messages were left out")

    def _toolbar(self) -> str:
        engine, name = self.speaker.engine, visible(self.speaker.name)
        if engine.info is None:
            progress = engine.progress
            if progress is None:
                return f" {name} · starting"
            percent = 100 * progress.done // max(1, progress.total)
            return f" {name} · {visible(progress.label)} {percent} %"
        parts = [name]
        size = engine.info.ctx_size_tokens
        if self.last_answer is not None:
            used = self.last_answer.num_prompt_tokens + self.last_answer.num_tokens
            parts.append(f"ctx {used}/{size} ({100 * used // size} %)")
            if self.last_answer.tokens_per_s:
                parts.append(f"{self.last_answer.tokens_per_s:.0f} tok/s")
        else:
            parts.append(f"ctx {size}")
        return " " + " · ".join(parts)


def say(text: str) -> None:
    """A line of the program's own, apart from answers: on stderr."""
    print(visible(text), file=sys.stderr, flush=True)


def _show_prefill() -> Callable[[Prefill], None]:
    """Progress of a long prompt in the line where the answer will begin."""

    def show(progress: Any) -> None:
        percent = 100 * progress.done // progress.total
        done = progress.done >= progress.total
        write("\r\x1b[K" if done else f"\r\x1b[Kreading the prompt {percent} %\r")

    return show


def _history_file() -> Any:
    import platformdirs

    return platformdirs.user_state_path("swiftchat") / "history"
