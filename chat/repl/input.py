"""The input line: keys, history and completion, on prompt_toolkit."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.cursor_shapes import ModalCursorShapeConfig
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER, EditingMode
from prompt_toolkit.filters import Condition, emacs_mode, has_focus
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput

from swiftchat.chat.repl.message import is_unfinished
from swiftchat.chat.repl.pastes import Pastes
from swiftchat.chat.terminal.sanitize import sanitize

PLACEHOLDER = "Send a message (/? for help)"


class InputLine:
    """Reads messages.

    `words` gives what Tab offers after a command, and what each of it is. Without a `toolbar`
    nothing is drawn that nobody typed, and the input line says whose it is. `io` are
    prompt_toolkit's `input` and `output`, for tests.
    """

    def __init__(
        self,
        commands: Iterable[str],
        words: Callable[[str], Mapping[str, str]],
        history_file: Path | None,
        toolbar: Callable[[], StyleAndTextTuples] | None,
        is_vi: bool = False,
        **io: object,
    ) -> None:
        self._pastes = Pastes()
        self._given = ""
        self.completer = _CommandCompleter(sorted(commands), words)
        self._session: PromptSession[str] = PromptSession(
            ">>> " if toolbar else "You >>> ",
            multiline=True,
            prompt_continuation="... ",
            key_bindings=_key_bindings(self._pastes, Condition(self._is_typed)),
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
            input_processors=[_Gate()],
            refresh_interval=0.5 if toolbar else 0,  # loading goes on while nobody types
            **io,  # type: ignore[arg-type]
        )

    def prompt(self, default: str = "", pre_run: Callable[[], None] | None = None) -> str:
        """The next message, beginning with `default`.

        Raises `EOFError` at Ctrl-D on an empty line, and `KeyboardInterrupt` at Ctrl-C where
        nothing has been typed; else that clears the line.
        """
        self._given = self._pastes.folded(default)
        typed = self._session.prompt(default=self._given, pre_run=pre_run)
        return self._pastes.unfolded(typed)

    def _is_typed(self) -> bool:
        """Whether there is a text, and not one that came back from an interrupted answer."""
        return get_app().current_buffer.text not in ("", self._given)


class _Gate(Processor):
    """What is in the line may come from a file: controls are as visible there as in answers."""

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        fragments = transformation_input.fragments
        return Transformation([(style, sanitize(text)) for style, text, *_ in fragments])


def _placeholder() -> StyleAndTextTuples:
    # In a search the line is empty, too, but shows what was found.
    return [] if get_app().layout.is_searching else [("fg:ansibrightblack", PLACEHOLDER)]


def open_history(file: Path | None, pastes: Pastes) -> History:
    """The input history, readable by the user alone; in memory where it cannot be written."""
    if file is None:
        return InMemoryHistory()
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Created here, because prompt_toolkit's own file would follow the umask.
        os.close(os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
        file.chmod(0o600)
    except OSError as error:
        print(f"warning: the input history is not saved: {error.strerror}", file=sys.stderr)
        return InMemoryHistory()
    return _History(str(file), pastes)


class _History(FileHistory):
    def __init__(self, filename: str, pastes: Pastes) -> None:
        super().__init__(filename)
        self._pastes = pastes

    def store_string(self, string: str) -> None:
        # A full disk is no reason to lose the message. Bytes that are no UTF-8 come from the
        # terminal as surrogates, which no file takes. Other chats do not know this one's marks.
        string = self._pastes.unfolded(string)
        with contextlib.suppress(OSError):
            super().store_string(string.encode("utf-8", "replace").decode())


# In a history search the keys keep what they do there.
_is_typing = has_focus(DEFAULT_BUFFER)


def _key_bindings(pastes: Pastes, is_typed: Condition) -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter", filter=_is_typing)
    def _send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if not is_unfinished(buffer.text):
            buffer.validate_and_handle()
            return
        if buffer.text.endswith("\\"):  # typed to go on; those inside a pasted text stay
            buffer.cursor_position = len(buffer.text)
            buffer.delete_before_cursor()
        buffer.insert_text("\n")

    @keys.add("c-c", filter=_is_typing & is_typed)
    @keys.add("<sigint>", filter=_is_typing & is_typed)
    def _clear(event: KeyPressEvent) -> None:
        event.current_buffer.reset()

    @keys.add("escape", "enter", filter=_is_typing & emacs_mode)  # in vi Escape must not wait
    @keys.add("c-j", filter=_is_typing)
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add(Keys.BracketedPaste, filter=_is_typing)
    def _paste(event: KeyPressEvent) -> None:
        text = event.data.replace("\r\n", "\n").replace("\r", "\n")
        event.current_buffer.insert_text(pastes.mark(text))

    @keys.add("c-x", "c-e", filter=_is_typing)
    def _edit(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        buffer.document = Document(pastes.unfolded(buffer.text))
        buffer.open_in_editor()  # and back into the line: Enter sends, here as everywhere

    return keys


class _CommandCompleter(Completer):
    """Completes commands, what they take, and paths."""

    def __init__(self, commands: list[str], words: Callable[[str], Mapping[str, str]]) -> None:
        self._commands = commands
        self._words = words
        self._paths = PathCompleter(expanduser=True)

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        name, has_more, rest = document.text_before_cursor.partition(" ")
        word = rest.rpartition(" ")[2] if has_more else name
        offered: Mapping[str, str] = {}
        if name.startswith("/"):
            offered = self._words(name) if has_more else dict.fromkeys(self._commands, "")
        for typed in dict.fromkeys((rest or word, word)):  # names may have blanks in them
            found = [one for one in offered if one.startswith(typed)]
            for one in found:
                yield Completion(one, -len(typed), display_meta=sanitize(offered[one]))
            if found:
                return
        if name == "/read" or "/" in word or word.startswith("~"):
            yield from self._paths.get_completions(Document(word), complete_event)
