"""The queue of lines that were typed while an answer came; they are sent when it has ended."""

from collections.abc import Callable
from dataclasses import replace

from prompt_toolkit.utils import get_cwidth

from swiftchat.chat.render.style import Rows
from swiftchat.chat.repl.pastes import Pastes
from swiftchat.chat.repl.type_ahead import Typed
from swiftchat.chat.slash.registry import is_aside
from swiftchat.chat.terminal.keyboard import Keyboard
from swiftchat.chat.terminal.output import print_notice
from swiftchat.chat.terminal.sanitize import sanitize

PROMPT = ">>> "


class LineQueue:
    """What is typed at a keyboard while no prompt reads it.

    `run` runs a command that need not wait. Unless `is_redrawn`, for screen readers, each change is
    told in a line. Any thread may call `rows` and `note`, only the main thread the other methods.
    """

    def __init__(
        self, keyboard: Keyboard, run: Callable[[str], None], *, is_redrawn: bool = True
    ) -> None:
        self.keyboard = keyboard
        self.pastes = Pastes()
        self._run = run
        self._is_redrawn = is_redrawn
        self._typed = self._told = Typed()

    def next_line(self) -> str | None:
        """Take the first line that waits, None if there is none."""
        self._absorb()
        if not self._typed.lines:
            return None
        first, *others = self._typed.lines
        self._typed = self._told = replace(self._typed, lines=tuple(others))
        return first

    def hold(self) -> None:
        """Make what waits a part of the draft: it is not sent by itself."""
        self._absorb()
        self._typed = self._told = self._typed.held()

    def take_draft(self) -> str:
        """Take all that was typed as the text of a line, without new lines at its end."""
        self.hold()
        draft, self._typed = self._typed.draft, Typed(rest=self._typed.rest)
        return draft.rstrip("\n")

    def attend(self, pause: Callable[[], None]) -> None:
        """Run the commands that need not wait for the answer, unless other lines wait before them.

        `pause` is called before anything is printed.
        """
        self._absorb()
        while self._typed.lines and is_aside(self._typed.lines[0]):
            line = self.next_line()
            assert line is not None
            pause()
            self._run(line)
        if not self._is_redrawn and self._typed.lines != self._told.lines:
            pause()
            self._tell()

    def rows(self, columns: int) -> Rows:
        """Return what there is to show in rows of so many columns: what waits, and the draft."""
        typed = self._look()
        waiting = _waiting_text(len(typed.lines), columns)
        rows = [("notice", waiting)] if waiting else []
        return [*rows, ("question", self._shown(typed, columns))] if typed.draft else rows

    def note(self, columns: int) -> str:
        """Return the same in one row."""
        typed = self._look()
        if typed.draft:
            return self._shown(typed, columns * 2 // 3)
        return _waiting_text(len(typed.lines), columns)

    def _look(self) -> Typed:
        """Return all that was typed, and leave it."""
        typed = self._typed
        for event in self.keyboard.pending:
            typed = typed.after(event, self.pastes)
        return typed

    def _absorb(self) -> None:
        while (event := self.keyboard.take()) is not None:
            self._typed = self._typed.after(event, self.pastes)

    def _tell(self) -> None:
        lines, told = self._typed.lines, self._told.lines
        if len(lines) > len(told):
            print_notice(f"{_waiting_text(len(lines), 80)}: {lines[-1]}")
        else:
            print_notice(f"taken back, Enter sends it again: {told[-1]}")
        self._told = self._typed

    def _shown(self, typed: Typed, columns: int) -> str:
        """Return the draft as one row behind a prompt; of a long one the end, where it grows."""
        text = PROMPT + sanitize(self.pastes.labeled(typed.draft)).replace("\n", " ↵ ")
        if get_cwidth(text) <= columns:
            return text
        start, width = len(text), 1
        while start and (width := width + get_cwidth(text[start - 1])) <= columns:
            start -= 1
        return f"…{text[start:]}"


def _waiting_text(num_lines: int, columns: int) -> str:
    """Return how many lines wait in so many columns, empty for none."""
    if not num_lines:
        return ""
    is_one = num_lines == 1
    count, how = ("1", "↑ edits it") if is_one else (f"{num_lines}", "↑ edits the last")
    verb, noun = ("waits", "message") if is_one else ("wait", "messages")
    texts = (f"{count} {noun} {verb} · {how}", f"{count} {verb} · {how}", f"{count} {verb}")
    return next((text for text in texts if len(text) <= columns), count)
