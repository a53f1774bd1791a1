"""The input line: keys, history and completion, with prompt_toolkit."""

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.cursor_shapes import ModalCursorShapeConfig
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER, EditingMode
from prompt_toolkit.filters import Condition, emacs_mode, has_focus
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.lexers import Lexer
from prompt_toolkit.output import ColorDepth

from swiftchat.chat.render.style import Style
from swiftchat.chat.repl.keyboard_input import KeyboardInput, open_output
from swiftchat.chat.repl.line_queue import PROMPT, LineQueue
from swiftchat.chat.repl.message import continued
from swiftchat.chat.repl.pastes import Pastes, ShownLine, without_placeholders
from swiftchat.chat.repl.shell_paths import ShellPathCompleter, last_word
from swiftchat.chat.repl.word_wrap import WordWrap
from swiftchat.chat.slash.registry import is_command
from swiftchat.chat.terminal.output import print_notice
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.chat.terminal.signals import delayed_exit
from swiftchat.chat.terminal.theme import has_truecolor
from swiftchat.errors.addresses import without_passwords
from swiftchat.weights.files.private import create_private_folder, open_private

PLACEHOLDER = "Send a message (/? for help)"


class InputLine:
    """Reads messages.

    `commands` maps each command to its description, `complete_argument` a command to the words
    that Tab offers after it, with descriptions. Without a `toolbar` (for screen readers) there is
    no placeholder either, and the prompt has a speaker label. Without `queue`, which has the
    keyboard, it reads the input of prompt_toolkit's session. `style` returns how questions look
    now; `is_colored` is for the menu and the toolbar.
    """

    def __init__(
        self,
        commands: Mapping[str, str],
        complete_argument: Callable[[str], Mapping[str, str]],
        history_file: Path | None,
        toolbar: Callable[[], StyleAndTextTuples] | None,
        is_vi: bool = False,
        queue: LineQueue | None = None,
        *,
        is_colored: bool = True,
        style: Callable[[], Style] = lambda: Style("raw"),
    ) -> None:
        self._queue = queue
        self._pastes = Pastes() if queue is None else queue.pastes
        self._default = ""
        self.completer = _CommandCompleter(commands, complete_argument)
        prompt, continuation = PROMPT if toolbar else f"You {PROMPT}", "... "
        question = QuestionLexer(style)
        self._session: PromptSession[str] = PromptSession(
            lambda: [(question.style, prompt)],
            multiline=True,
            prompt_continuation=lambda *_: [(question.style, continuation)],
            lexer=question,
            key_bindings=_key_bindings(self._pastes, Condition(self._has_typed_text)),
            editing_mode=EditingMode.VI if is_vi else EditingMode.EMACS,
            cursor=ModalCursorShapeConfig() if is_vi else None,
            completer=self.completer,
            complete_while_typing=False,
            enable_history_search=True,
            enable_open_in_editor=True,
            enable_suspend=True,
            history=open_history(history_file, self._pastes),
            placeholder=_placeholder if toolbar else None,
            bottom_toolbar=toolbar,
            input_processors=[ShownLine(self._pastes), WordWrap(prompt, continuation)],
            refresh_interval=0.5 if toolbar else 0,  # shows the loading progress
            input=None if queue is None else KeyboardInput(queue.keyboard),
            output=None if queue is None else open_output(),
            color_depth=_color_depth(is_colored),
        )
        self._session.default_buffer.on_text_changed += self._pastes.keep_short

    def prompt(self, default: str = "", pre_run: Callable[[], None] | None = None) -> str:
        """Return the next message; the line starts with `default`.

        Raises `EOFError` at Ctrl-D on an empty line, and `KeyboardInterrupt` at Ctrl-C if nothing
        was typed; otherwise Ctrl-C clears the line. What was typed before becomes part of the line.
        """
        self._default = self._pastes.fold(default)
        with delayed_exit(self._end_soon):
            if self._queue is None:
                typed = self._session.prompt(default=self._default, pre_run=pre_run)
            else:
                with self._queue.keyboard.prompting():
                    texts = filter(None, (self._default, self._queue.take_draft()))
                    typed = self._session.prompt(default="\n".join(texts), pre_run=pre_run)
        return self._pastes.unfold(typed)

    def remember(self, line: str) -> None:
        """Keep a line that was not typed at the prompt in the history."""
        self._session.history.append_string(line)

    def _end_soon(self) -> bool:
        """Let the event loop of the prompt end the prompt; return whether there is a loop."""
        app = self._session.app
        loop = app.loop
        if loop is None:
            return False

        def end() -> None:
            if app.is_running and not app.is_done:
                app.exit(exception=EOFError)

        loop.call_soon_threadsafe(end)
        return True

    def _has_typed_text(self) -> bool:
        """Return whether the line has text other than the default."""
        return get_app().current_buffer.text not in ("", self._default)


class QuestionLexer(Lexer):
    """Gives what is typed the style of a question, which `current_style` has; not a command."""

    def __init__(self, current_style: Callable[[], Style]) -> None:
        self._current_style = current_style

    @property
    def style(self) -> str:
        """The style of a question in words of prompt_toolkit."""
        fragments = to_formatted_text(ANSI(self._current_style().paint("question", "x")))
        return fragments[0][0]

    def lex_document(self, document: Document) -> Callable[[int], StyleAndTextTuples]:
        style = "" if is_command(document.text) else self.style
        return lambda number: [(style, document.lines[number])]

    def invalidation_hash(self) -> str:
        return self.style


def _color_depth(is_colored: bool) -> ColorDepth | None:
    """Return the depth of colors; None leaves the choice to prompt_toolkit."""
    if not is_colored:
        return ColorDepth.DEPTH_1_BIT
    if has_truecolor(os.environ):
        return ColorDepth.DEPTH_24_BIT
    # Against NO_COLOR, which prompt_toolkit would obey.
    return ColorDepth.DEPTH_4_BIT if ColorDepth.from_env() is ColorDepth.DEPTH_1_BIT else None


def _placeholder() -> StyleAndTextTuples:
    # During a history search the empty buffer shows the match; what scrolls away has no hint.
    app = get_app()
    columns = app.output.get_size().columns
    is_narrow = columns <= len(PROMPT) + len(PLACEHOLDER)  # it would take a second row
    is_hidden = app.layout.is_searching or app.is_done or is_narrow
    return [] if is_hidden else [("fg:ansibrightblack", PLACEHOLDER)]


def open_history(file: Path | None, pastes: Pastes) -> History:
    """Open the input history with mode 0600; in memory if the file cannot be written."""
    if file is None:
        return InMemoryHistory()
    try:
        create_private_folder(file.parent)
        # Created here, because prompt_toolkit would use the umask.
        os.close(open_private(file, os.O_APPEND | os.O_WRONLY))
    except OSError as error:
        print_notice(f"warning: the input history is not saved: {error.strerror}")
        return InMemoryHistory()
    return _History(str(file), pastes)


class _History(FileHistory):
    def __init__(self, filename: str, pastes: Pastes) -> None:
        super().__init__(filename)
        self._pastes = pastes

    def load_history_strings(self) -> Iterable[str]:
        # What was pasted in an earlier chat is as long as then.
        return map(self._pastes.fold_entry, super().load_history_strings())

    def store_string(self, string: str) -> None:
        # A full disk must not lose the message. Invalid UTF-8 from the terminal becomes surrogates,
        # which cannot be encoded. Placeholders of pastes are valid only in this chat. A file keeps
        # no passwords; the entry of this chat has them.
        string = without_passwords(self._pastes.unfold(string))
        with contextlib.suppress(OSError):
            super().store_string(string.encode("utf-8", "replace").decode())


# During a history search the keys keep their meaning.
_is_typing = has_focus(DEFAULT_BUFFER)


def _key_bindings(pastes: Pastes, is_typed: Condition) -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter", filter=_is_typing)
    def _send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        longer = continued(buffer.text, buffer.cursor_position)
        if longer is None:
            buffer.validate_and_handle()
        else:
            buffer.document = Document(*longer)

    @keys.add("c-c", filter=_is_typing & is_typed)
    @keys.add("<sigint>", filter=_is_typing & is_typed)
    def _clear(event: KeyPressEvent) -> None:
        event.current_buffer.reset()

    @keys.add(
        "escape", "enter", filter=_is_typing & emacs_mode
    )  # in vi mode Escape must not wait for a second key
    @keys.add("c-j", filter=_is_typing)
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add(Keys.BracketedPaste, filter=_is_typing)
    def _paste(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text(pastes.fold_paste(event.data))

    @keys.add("c-x", "c-e", filter=_is_typing)
    def _edit(event: KeyPressEvent) -> None:
        pastes.edit(event.current_buffer)  # returns to the line; Enter sends it

    return keys


class _CommandCompleter(Completer):
    """Completes commands, their arguments, and paths."""

    def __init__(
        self, commands: Mapping[str, str], complete_argument: Callable[[str], Mapping[str, str]]
    ) -> None:
        self._commands = dict(sorted(commands.items()))
        self._complete_argument = complete_argument
        self._paths = PathCompleter(expanduser=True)
        self._shell_paths = ShellPathCompleter()

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        typed_text = without_placeholders(document.text_before_cursor)
        name, has_more, rest = typed_text.partition(" ")
        word = rest.rpartition(" ")[2] if has_more else name
        offered: Mapping[str, str] = {}
        if name.startswith("/"):
            offered = self._complete_argument(name) if has_more else self._commands
        for typed in dict.fromkeys((rest or word, word)):  # names may contain spaces
            matches = [text for text in offered if text.startswith(typed)]
            for text in matches:
                yield Completion(text, -len(typed), display_meta=sanitize(offered[text]))
            if matches:
                return
        takes_paths = name in ("/read", "/attach") or name.startswith("!")
        if name.startswith("/"):
            takes_paths = takes_paths or _is_path(last_word(rest)[0])
        if has_more and takes_paths:
            yield from self._shell_paths.get_completions(Document(rest), complete_event)
        elif _is_path(word):
            yield from self._paths.get_completions(Document(word), complete_event)


def _is_path(word: str) -> bool:
    return "/" in word or word.startswith("~")
