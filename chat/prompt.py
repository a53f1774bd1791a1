"""The input line: keys, history and completion, on prompt_toolkit."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output.plain_text import PlainTextOutput
from prompt_toolkit.utils import is_dumb_terminal

BLOCK = '"""'
PLACEHOLDER = "Send a message (/? for help)"


def build_prompt(commands: Iterable[str], arguments: Mapping[str, Sequence[str]],
                 history_file: Path | None, toolbar: Callable[[], StyleAndTextTuples] | None,
                 **io: object) -> "PromptSession[str]":  # fmt: skip
    """The session that reads messages.

    `arguments` are the words that Tab offers after a command. Without a `toolbar` nothing is
    drawn that nobody typed, and the input line says whose it is. `io` are prompt_toolkit's
    `input` and `output`, for tests.
    """
    if is_dumb_terminal():
        io = {"output": PlainTextOutput(sys.stdout), **io}
    return PromptSession(
        ">>> " if toolbar else "You >>> ",
        multiline=True,
        prompt_continuation="... ",
        key_bindings=_key_bindings(),
        completer=_CommandCompleter(sorted(commands), arguments),
        complete_while_typing=False,
        enable_history_search=True,
        enable_open_in_editor=True,
        enable_suspend=True,
        history=open_history(history_file),
        placeholder=[("fg:ansibrightblack", PLACEHOLDER)] if toolbar else None,
        bottom_toolbar=toolbar,
        refresh_interval=0.5 if toolbar else 0,  # loading goes on while nobody types
        **io,  # type: ignore[arg-type]
    )


def open_history(file: Path | None) -> History:
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
    return _History(str(file))


class _History(FileHistory):
    def store_string(self, string: str) -> None:
        # A full disk is no reason to lose the message. Bytes that are no UTF-8 come from the
        # terminal as surrogates, which no file takes.
        with contextlib.suppress(OSError):
            super().store_string(string.encode("utf-8", "replace").decode())


def is_unfinished(text: str) -> bool:
    """Whether Enter should go on with the message: an open block or a trailing backslash."""
    return text.endswith("\\") or (text.lstrip().startswith(BLOCK) and _block(text) is None)


def message_of(text: str) -> str:
    """The message that was typed, the marks of a block taken off."""
    inside = _block(text)
    return text if inside is None else inside.strip("\n")


def _block(text: str) -> str | None:
    """What stands between the marks of a block, None if the text is not one whole block."""
    text = text.strip()
    whole = len(text) >= 2 * len(BLOCK) and text.startswith(BLOCK) and text.endswith(BLOCK)
    return text[len(BLOCK) : -len(BLOCK)] if whole else None


# In a history search the keys keep what they do there.
_is_typing = has_focus(DEFAULT_BUFFER)


@Condition
def _has_text() -> bool:
    return bool(get_app().current_buffer.text)


def _key_bindings() -> KeyBindings:
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

    @keys.add("c-c", filter=_is_typing & _has_text)
    @keys.add("<sigint>", filter=_is_typing & _has_text)
    def _clear(event: KeyPressEvent) -> None:
        event.current_buffer.reset()

    @keys.add("escape", "enter", filter=_is_typing)
    @keys.add("c-j", filter=_is_typing)
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


class _CommandCompleter(Completer):
    """Completes commands, what they take, and paths."""

    def __init__(self, commands: list[str], arguments: Mapping[str, Sequence[str]]) -> None:
        self._commands = commands
        self._arguments = arguments
        self._paths = PathCompleter(expanduser=True)

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        name, *rest = document.text_before_cursor.split(" ")
        word = rest[-1] if rest else name
        words = self._arguments.get(name, ()) if rest else self._commands
        if words and name.startswith("/"):
            fitting = [candidate for candidate in words if candidate.startswith(word)]
            yield from (Completion(found, start_position=-len(word)) for found in fitting)
            if fitting:
                return
        if name == "/read" or "/" in word or word.startswith("~"):
            yield from self._paths.get_completions(Document(word), complete_event)
