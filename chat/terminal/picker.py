"""A list in the terminal of which one row is picked: arrows, Enter, and typing to filter."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import click

from swiftchat.chat.terminal.output import print_notice
from swiftchat.chat.terminal.sanitize import sanitize

_MAX_ROWS = 12
_MAX_NUMBERED = 20  # rows that a screen reader reads out
_KEYS = "arrows choose, Enter takes it, typing filters, Esc leaves"


@dataclass(frozen=True)
class Row:
    """A row of a picker: `name`, which a typed filter is compared with too, and further text."""

    name: str
    about: str


def pick(title: str, rows: Sequence[Row], *, is_redrawn: bool = True) -> Row | None:
    """Return the row that the user picks in the terminal, None for none; Ctrl-C interrupts.

    Without `is_redrawn`, for screen readers and terminals that cannot move the cursor, the first
    rows are numbered and the number is typed.
    """
    width = max(len(row.name) for row in rows)
    lines = [sanitize(f"{row.name:{width}}  {row.about}").rstrip() for row in rows]
    return _redrawn(title, rows, lines) if is_redrawn else _numbered(title, rows, lines)


def _numbered(title: str, rows: Sequence[Row], lines: Sequence[str]) -> Row | None:
    print_notice(title)
    for number, line in enumerate(lines[:_MAX_NUMBERED], 1):
        print_notice(f"{number:3}  {line}")
    asked = click.IntRange(0, min(len(rows), _MAX_NUMBERED))
    number = click.prompt("number, or 0 for none", type=asked, default=1, err=True)
    return rows[number - 1] if number else None


def _redrawn(title: str, rows: Sequence[Row], lines: Sequence[str]) -> Row | None:
    # Imported here: scripts and screen readers need none of it.
    from prompt_toolkit import Application
    from prompt_toolkit.formatted_text import StyleAndTextTuples
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.keys import Keys
    from prompt_toolkit.layout import FormattedTextControl, Layout, Window
    from prompt_toolkit.output import create_output

    choice = _Choice(rows)

    def shown() -> StyleAndTextTuples:
        text: StyleAndTextTuples = [("bold", f"{title}\n")]
        for index in choice.window():
            style = "reverse" if index == choice.chosen else ""
            text.append((style, f"{'>' if style else ' '} {lines[index]}\n"))
        text.append(("", f"filter: {choice.filter}" if choice.filter else f"({_KEYS})"))
        return text

    keys = KeyBindings()

    @keys.add("up")
    @keys.add("c-p")
    def _up(event: KeyPressEvent) -> None:
        choice.move(-1)

    @keys.add("down")
    @keys.add("c-n")
    def _down(event: KeyPressEvent) -> None:
        choice.move(1)

    @keys.add("enter")
    def _take(event: KeyPressEvent) -> None:
        if choice.chosen is not None:
            event.app.exit(result=choice.chosen)

    @keys.add("escape", eager=True)
    @keys.add("c-d")
    def _leave(event: KeyPressEvent) -> None:
        event.app.exit(result=None)

    @keys.add("c-c")
    @keys.add("<sigint>")
    def _interrupt(event: KeyPressEvent) -> None:
        event.app.exit(exception=KeyboardInterrupt)

    @keys.add("backspace")
    def _shorten(event: KeyPressEvent) -> None:
        choice.set_filter(choice.filter[:-1])

    @keys.add(Keys.Any)
    def _type(event: KeyPressEvent) -> None:
        if event.data.isprintable():
            choice.set_filter(choice.filter + event.data)

    application: Application[int | None] = Application(
        Layout(Window(FormattedTextControl(shown), dont_extend_height=True, wrap_lines=False)),
        key_bindings=keys,
        erase_when_done=True,
        output=create_output(always_prefer_tty=True),
    )
    index = asyncio.run(application.run_async())
    return None if index is None else rows[index]


class _Choice:
    """The rows that match the filter, and the chosen one of them."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self.filter = ""
        self._matching = list(range(len(rows)))
        self._position = 0

    @property
    def chosen(self) -> int | None:
        """The index of the chosen row; None if no row matches."""
        return self._matching[self._position] if self._matching else None

    def window(self) -> list[int]:
        """Return the indices of the rows that are shown, with the chosen one."""
        first = max(0, self._position - _MAX_ROWS + 1)
        return self._matching[first : first + _MAX_ROWS]

    def move(self, step: int) -> None:
        self._position = min(max(0, self._position + step), max(0, len(self._matching) - 1))

    def set_filter(self, text: str) -> None:
        """Keep the rows with all words of `text`, ignoring case; choose the first."""
        words = text.lower().split()
        self.filter, self._position = text, 0
        self._matching = [
            index
            for index, row in enumerate(self._rows)
            if all(word in f"{row.name} {row.about}".lower() for word in words)
        ]
