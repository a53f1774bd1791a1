"""The interactive loop: read a line, run a command or answer a message, repeat."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shutil import get_terminal_size

from prompt_toolkit.formatted_text import StyleAndTextTuples

from swiftchat.chat.attachments.attachment import Attachment, message_with
from swiftchat.chat.attachments.files import read_attachments
from swiftchat.chat.history.autosave import Autosave
from swiftchat.chat.history.conversation import Conversation, Message
from swiftchat.chat.model.chat_model import ChatModel, chat_model_for
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.render.message_rows import question_rows
from swiftchat.chat.render.style import (
    Style,
    can_ask_background,
    choose_style,
    is_accessible,
    is_colored,
    is_dumb,
    theme_of,
)
from swiftchat.chat.repl.hints import Hints, hints_file
from swiftchat.chat.repl.input import InputLine
from swiftchat.chat.repl.line_queue import LineQueue
from swiftchat.chat.repl.message import message_of
from swiftchat.chat.repl.plain_input import PlainPrompt
from swiftchat.chat.repl.toolbar import toolbar
from swiftchat.chat.repl.turn_runner import InterruptTimer, TurnRunner
from swiftchat.chat.slash.command import Next
from swiftchat.chat.slash.registry import BY_NAME, complete_argument, is_aside, is_command, run
from swiftchat.chat.slash.sessions import show_end
from swiftchat.chat.slash.state import ChatState
from swiftchat.chat.terminal.announcements import Announcements
from swiftchat.chat.terminal.error_report import print_error
from swiftchat.chat.terminal.keyboard import Keyboard
from swiftchat.chat.terminal.output import print_notice, write
from swiftchat.chat.terminal.status_line import StatusLine
from swiftchat.chat.terminal.streams import theme_stderr
from swiftchat.chat.tools.toolbox import Toolbox
from swiftchat.chat.turn.model_tools import start_tools
from swiftchat.chat.turn.one_shot import answer_prompt, one_shot_status, one_shot_style
from swiftchat.chat.turn.text_view import TextView
from swiftchat.errors import ContextOverflow

_ANSWER_WAIT_S = 0.15  # from the question for the background color to the first rendered text
_OVERFLOW_HINT = (
    "/compact replaces old turns with a summary, /new starts a new conversation, "
    "/set ctx_size N changes the context, /set overflow drop-oldest leaves old turns out"
)
_ATTACHED_HINT = "/attach none drops the attachments, /attach lists them; "


def run_repl(
    config: ChatConfig, conversation: Conversation, autosave: Autosave, keyboard: Keyboard
) -> int:
    """Find the model, start to load it, and run the loop; return the exit code.

    With `--interactive` the message at the tip is answered first.
    """
    is_asked = config.interactive
    attachments = () if is_asked else read_attachments(config.file, offline=config.offline)
    with chat_model_for(config) as chat_model:
        status = one_shot_status(config)
        with start_tools(config, chat_model, status.show) as toolbox:
            status.clear()
            repl = Repl(chat_model, config, conversation, attachments, autosave, keyboard, toolbox)
            if is_asked:
                view = TextView(chat_model, config, one_shot_style(config), status)
                with keyboard.erasing(view.pause):
                    answer_prompt(view, conversation, autosave, toolbox)
            else:
                repl.state.draft = config.opening
            return repl.run(shows_end=not is_asked)


class Repl:
    """The prompt of one chat.

    `attachments` precede the first message. An unanswered message returns to the input line.
    """

    def __init__(
        self,
        chat_model: ChatModel,
        config: ChatConfig,
        conversation: Conversation,
        attachments: Sequence[Attachment] = (),
        autosave: Autosave | None = None,
        keyboard: Keyboard | None = None,
        toolbox: Toolbox | None = None,
    ) -> None:
        self._is_accessible = is_accessible(config, os.environ)
        self.state = ChatState(
            chat_model,
            config,
            conversation,
            autosave or Autosave(None, print_notice),
            choose_style(config, os.environ, at_terminal=True),
            StatusLine(not self._is_accessible, note=lambda columns: self._queue.note(columns)),
            attachments=list(attachments),
            keyboard=keyboard or Keyboard(),
            toolbox=toolbox or Toolbox(),
        )
        if config.knowledge:
            # Imported here, with SQLite: it would delay the first prompt.
            from swiftchat.chat.knowledge.knowledge import open_knowledge

            self.state.knowledge = open_knowledge(config)
        self._announcements = Announcements(
            os.environ,
            write,
            is_on=config.announce == "auto" and sys.stdout.isatty() and not self._is_accessible,
        )
        self._hints = Hints(None if config.quiet else hints_file(), print_notice)
        self._interrupts = InterruptTimer()
        self._queue = LineQueue(
            self.state.keyboard, self._run_aside, is_redrawn=not self._is_accessible
        )
        self._turns = TurnRunner(
            self.state, self._hints, self._interrupts, self._announcements, self._queue
        )
        self._asks_background = False
        self._prompt = self._input_line()

    def run(self, *, shows_end: bool = True) -> int:
        """Read and answer until the user leaves; save everything; return the exit code.

        First the end of the conversation is shown, unless it is on the screen already.
        """
        state = self.state
        if not state.config.quiet:
            self._greet()
        self._asks_background = can_ask_background(state.config, state.style, os.environ)
        if self._asks_background:
            state.keyboard.ask_background()
        if state.conversation.tree and shows_end:
            self._adapt_theme(_ANSWER_WAIT_S)
            show_end(state)
        try:
            return self._loop()
        finally:
            self._announcements.close()
            state.autosave.finish(state.conversation)
            state.close_compared()
            state.close_knowledge()
            state.chat_model.close()  # /model may have replaced the one that the caller closes

    def _greet(self) -> None:
        config = self.state.config
        options = {"tp": config.tp, "pp": config.pp}
        place = "".join(f" · --{name} {count}" for name, count in options.items() if count != 1)
        if config.connect:
            place = f" · at {config.connect}"
        elif self.state.chat_model.engine.is_attached:
            place += " · on a running engine"
        print_notice(
            f"swiftchat · {self.state.chat_model.name}{place} · /? for help, Ctrl-D leaves"
        )
        for source, tools in self.state.toolbox.sources().items():
            if tools:
                of = f"tools of {source}" if source else "built-in tools"
                print_notice(f"{len(tools)} {of}; /tools lists them")
        self._hints.show("start")
        for attachment in self.state.attachments:
            for note in attachment.notes:
                print_notice(note)
            print_notice(f"{attachment.name} is attached to the first message")

    def _adapt_theme(self, wait_s: float = 0.0) -> None:
        """Choose the theme for the background of the terminal, once it is known."""
        state = self.state
        if not self._asks_background:
            return
        if (answer := state.keyboard.background(wait_s)) is not None:
            self._asks_background = False
            theme = theme_of(state.config, os.environ, answer)
            state.style = replace(state.style, theme=theme)
            theme_stderr(theme)

    def _current_style(self) -> Style:
        """Return the style of the background that is known by now."""
        self._adapt_theme()
        return self.state.style

    def _loop(self) -> int:
        self._queue.hold()  # what was typed before the first prompt
        while True:
            try:
                text = self._read()
                if text.strip() and not self._handle_safely(text):
                    return 0
            except EOFError:
                return 0
            except KeyboardInterrupt:
                self._queue.hold()
                if self._interrupts.record():
                    return 130
                is_draft = bool(self.state.draft)
                back = "no answer; the message is in the input line again"
                print_notice(back if is_draft else "Ctrl-D or /bye leaves")

    def _handle_safely(self, text: str) -> bool:
        """Handle a line; an error is printed, and the conversation goes on."""
        self._announcements.begin_output()
        try:
            return self.handle(text)
        except BrokenPipeError:
            raise  # nothing can be printed any more
        except Exception as error:  # noqa: BLE001  (a fault must not end a conversation)
            if not is_aside(text):
                self._queue.hold()
            hint = _OVERFLOW_HINT if isinstance(error, ContextOverflow) else ""
            if hint and self.state.attachments:
                hint = _ATTACHED_HINT + hint
            print_error(error, debug=self.state.config.debug, hint=hint)
            return True
        finally:
            self._announcements.end_output()

    def _input_line(self) -> InputLine | PlainPrompt:
        if is_dumb(os.environ):
            return PlainPrompt(self._queue)
        return InputLine(
            {name: one.summary for name, one in BY_NAME.items() if name.startswith("/")},
            lambda name: complete_argument(self.state, name),
            _history_file(),
            None if self._is_accessible else self._toolbar,
            self.state.config.editing_mode == "vi",
            self._queue if self.state.keyboard.is_open else None,
            is_colored=is_colored(self.state.config, os.environ),
            style=self._current_style,
        )

    def _toolbar(self) -> StyleAndTextTuples:
        return toolbar(self.state, get_terminal_size().columns)

    def _read(self) -> str:
        """Return the first line that waits, or else what is typed at the prompt."""
        draft, self.state.draft = self.state.draft, ""
        conversation = self.state.conversation
        self._announcements.show_title(conversation.name or conversation.title)
        self._announcements.begin_prompt()
        if not draft and (line := self._queue.next_line()) is not None:
            self._show_line(line)
            return line
        try:
            return self._prompt.prompt(default=draft, pre_run=self.state.chat_model.prepare)
        except KeyboardInterrupt:
            self.state.edited = None
            raise

    def _show_line(self, line: str) -> None:
        """Show a line that waited as the prompt would have left it."""
        from swiftchat.chat.render.markdown_view import terminal_size

        style = self._current_style()
        if is_command(line):
            style = replace(style, is_colored=False)
        rows = question_rows(style, line, terminal_size()[0])
        write("".join(f"{row}\n" for row in rows if row))
        self._prompt.remember(line)

    def _run_aside(self, line: str) -> None:
        """Run a command while an answer comes."""
        self._show_line(line)
        self._handle_safely(line)
        write("\n")

    def handle(self, text: str) -> bool:
        """Run a command or answer a message; return False to leave."""
        self._adapt_theme()
        edited, self.state.edited = self.state.edited, None
        if is_command(text):
            return self._run_command(text)
        message = message_of(text)
        if text.startswith("//") and "\n" not in text:
            message = message[1:]
        elif text.startswith("/") and "\n" not in text.strip():  # a path: no command begins so
            self._hints.show("path")
        message = message_with(self.state.attachments, message)
        if self.state.knowledge is not None:
            message = self._with_passages(message, text, edited)
        self._turns.send(message, text, edited)
        self.state.attachments = []
        return True

    def _with_passages(self, message: str, typed: str, edited: Message | None) -> str:
        """Return a message with passages of the knowledge; `typed` is the draft without them."""
        # Imported here: most chats have no knowledge.
        from swiftchat.chat.knowledge.question import with_passages

        state, conversation = self.state, self.state.conversation
        assert state.knowledge is not None
        before = edited.parent if edited is not None else conversation.tip
        earlier = [one.content for one in conversation.path_to(before) if one.role == "user"]
        try:
            with state.keyboard.erasing(state.status.clear):
                return with_passages(
                    state.knowledge, state.chat_model, earlier, message, state.status
                )
        except (Exception, KeyboardInterrupt):
            state.draft, state.edited = typed, edited
            raise

    def _run_command(self, text: str) -> bool:
        match run(self.state, text):
            case Next.LEAVE:
                return False
            case Next.REGENERATE:
                self._turns.regenerate()
            case Next.CONTINUE:
                self._turns.continue_answer()
            case Next.COMPARE:
                self._turns.compare()
            case Next.HINT_UNDONE:
                self._hints.show("undone")
        return True


def _history_file() -> Path:
    import platformdirs

    return platformdirs.user_state_path("swiftchat") / "history"
