"""The input line: keys, history and completion, on prompt_toolkit."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

BLOCK = '"""'
PLACEHOLDER = "Send a message (/? for help)"


def build_prompt(commands: Iterable[str], history_file: Path | None,
                 toolbar: Callable[[], str], **io: object) -> "PromptSession[str]":  # fmt: skip
    """The session that reads messages; tests give prompt_toolkit's `input` and `output` as `io`."""
    return PromptSession(
        ">>> ",
        multiline=True,
        prompt_continuation="... ",
        key_bindings=_key_bindings(),
        completer=_CommandCompleter(sorted(commands)),
        complete_while_typing=False,
        enable_history_search=True,
        enable_open_in_editor=True,
        enable_suspend=True,
        history=open_history(history_file),
        placeholder=[("fg:ansibrightblack", PLACEHOLDER)],
        bottom_toolbar=toolbar,
        refresh_interval=0.5,  # loading goes on while nobody types
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
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(file))


def is_unfinished(text: str) -> bool:
    """Whether Enter should go on with the message: an open block or a trailing backslash."""
    return text.count(BLOCK) % 2 == 1 or text.endswith("\\")


def message_of(text: str) -> str:
    """The message that was typed: continuations joined, the marks of a block taken off."""
    text = text.replace("\\\n", "\n")
    stripped = text.strip()
    if len(stripped) >= 2 * len(BLOCK) and stripped.startswith(BLOCK) and stripped.endswith(BLOCK):
        return stripped[len(BLOCK) : -len(BLOCK)].strip("\n")
    return text


def _key_bindings() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_unfinished(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    @keys.add("c-j")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


class _CommandCompleter(Completer):
    """Completes a command's name, and paths after `/read`."""

    def __init__(self, commands: list[str]) -> None:
        self._commands = commands
        self._paths = PathCompleter(expanduser=True)

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        text = document.text_before_cursor
        if not text.startswith("/"):
            return
        name, space, rest = text.partition(" ")
        if not space:
            for command in self._commands:
                if command.startswith(name):
                    yield Completion(command, start_position=-len(name))
        elif name == "/read":
            yield from self._paths.get_completions(Document(rest.split(" ")[-1]), complete_event)
