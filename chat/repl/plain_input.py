"""Input for terminals without cursor movement: the terminal edits the line."""

from collections.abc import Callable

from swiftchat.chat.repl.line_queue import PROMPT, LineQueue
from swiftchat.chat.repl.message import continued
from swiftchat.chat.terminal.input_scanner import InputEvent
from swiftchat.chat.terminal.keyboard import END
from swiftchat.chat.terminal.output import write
from swiftchat.chat.terminal.sanitize import sanitize

_PROMPT = f"You {PROMPT}"


class PlainPrompt:
    """Reads messages with the interface of `InputLine`, without key bindings."""

    def __init__(self, queue: LineQueue) -> None:
        self._queue = queue
        self._keyboard = queue.keyboard

    def prompt(self, default: str = "", pre_run: Callable[[], None] | None = None) -> str:
        """Return the next message; an empty line returns `default`, which is shown before.

        What was typed before the prompt, and several pasted lines, are kept until Enter, behind
        `default`. Raises `EOFError` at Ctrl-D and `KeyboardInterrupt` at Ctrl-C.
        """
        typed = self._queue.pastes.unfold(self._queue.take_draft()).strip("\n")
        text = "".join(f"{part}\n" for part in (default, typed) if part) if typed else ""
        with self._keyboard.line_mode():
            if default and not text:
                write(f"{sanitize(default)}\n(Enter sends it again)\n")
            if text:
                write(f"{sanitize(text)}{_offer(text)}\n")
            write(_PROMPT)
            if pre_run is not None:
                pre_run()
            while True:
                event = self._next_event()
                if event == END and not text:
                    raise EOFError
                text += _text(event)
                if event.is_paste:
                    write(f"\n{_offer(text)}\n{_PROMPT}")
                elif longer := continued(text.removesuffix("\n"), len(text)):
                    text = longer[0]
                    write("... ")
                elif text.endswith("\n"):
                    return text.strip("\n") or default

    def remember(self, line: str) -> None:
        """Do nothing: this prompt has no history."""

    def _next_event(self) -> InputEvent:
        while (event := self._keyboard.take()) is None:
            if self._keyboard.is_closed:
                raise EOFError
            self._keyboard.wait()
        return event


def _offer(text: str) -> str:
    """Return what is told about lines that wait: those before the prompt, and those pasted."""
    num_lines = len(text.removesuffix("\n").split("\n"))
    return (
        "(1 line; Enter sends it)" if num_lines == 1 else f"({num_lines} lines; Enter sends them)"
    )


def _text(event: InputEvent) -> str:
    if event == END:
        return ""
    return event.data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
