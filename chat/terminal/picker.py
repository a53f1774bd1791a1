"""A list in the terminal of which one row is picked: arrows, Enter, and typing to filter."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import click

from swiftchat.chat.terminal.output import print_notice
from swiftchat.chat.terminal.sanitize import sanitize

_MAX_ROWS = 12
_MAX_PREVIEW_ROWS = 6
_MIN_OTHER_ROWS = 3  # title, filter, and one for the cursor
_MAX_NUMBERED = 20  # rows that a screen reader reads out
_KEYS = "arrows choose, Enter takes it, typing filters, Esc leaves"


@dataclass(frozen=True)
class Row:
    """A row of a picker: `name`, which a typed filter is compared with too, and further text."""

    name: str
    about: str


def pick(
    title: str,
    rows: Sequence[Row],
    *,
    is_redrawn: bool = True,
    preview: Callable[[Row], str] | None = None,
) -> Row | None:
    """Return the row that the user picks in the terminal, None for none; Ctrl-C interrupts.

    `preview` returns a text whose end is shown below the rows, once for each row that is chosen.
    Without `is_redrawn`, for screen readers and terminals that cannot move the cursor, the first
    rows are numbered and the number is typed.
    """
    width = max(len(row.name) for row in rows)
    lines = [sanitize(f"{row.name:{width}}  {row.about}").rstrip() for row in rows]
    if not is_redrawn:
        return _numbered(title, rows, lines)

    @cache
    def end_of(index: int) -> list[str]:
        return sanitize(preview(rows[index])).splitlines()[-_MAX_PREVIEW_ROWS:] if preview else []

    return _redrawn(title, rows, lines, end_of)


def _numbered(title: str, rows: Sequence[Row], lines: Sequence[str]) -> Row | None:
    print_notice(title)
    for number, line in enumerate(lines[:_MAX_NUMBERED], 1):
        print_notice(f"{number:3}  {line}")
    asked = click.IntRange(0, min(len(rows), _MAX_NUMBERED))
    number = click.prompt("number, or 0 for none", type=asked, default=1, err=True)
    return rows[number - 1] if number else None


def _redrawn(
    title: str, rows: Sequence[Row], lines: Sequence[str], end_of: Callable[[int], list[str]]
) -> Row | None:
    # Imported here: scripts and screen readers need none of it.
    from prompt_toolkit import Application
    from prompt_toolkit.application import get_app
    from prompt_toolkit.formatted_text import StyleAndTextTuples
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.keys import Keys
    from prompt_toolkit.layout import FormattedTextControl, Layout, Window
    from prompt_toolkit.output import create_output

    choice = _Choice(rows)

    def shown() -> StyleAndTextTuples:
        text: StyleAndTextTuples = [("bold", f"{title}\n")]
        room = get_app().output.get_size().rows - _MIN_OTHER_ROWS
        window = choice.window(max(1, min(room, _MAX_ROWS)))
        for index in window:
            style = "reverse" if index == choice.chosen else ""
            text.append((style, f"{'>' if style else ' '} {lines[index]}\n"))
        end = [] if choice.chosen is None else end_of(choice.chosen)
        end = end[max(0, len(end) - max(0, room - len(window))) :]
        text += [("fg:ansibrightblack", f"  │ {row}\n") for row in end]
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

    @keys.add("pageup")
    def _page_up(event: KeyPressEvent) -> None:
        choice.move(-_MAX_ROWS)

    @keys.add("pagedown")
    def _page_down(event: KeyPressEvent) -> None:
        choice.move(_MAX_ROWS)

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

    def window(self, num_rows: int) -> list[int]:
        """Return the indices of the rows that are shown, at most so many, with the chosen one."""
        first = max(0, self._position - num_rows + 1)
        return self._matching[first : first + num_rows]

    def move(self, step: int) -> None:
        self._position = min(max(0, self._position + step), max(0, len(self._matching) - 1))

    def set_filter(self, text: str) -> None:
        """Keep the rows with all words of `text`, ignoring case; choose the first."""
        words = text.casefold().split()
        self.filter, self._position = text, 0
        self._matching = [
            index
            for index, row in enumerate(self._rows)
            if all(word in f"{row.name} {row.about}".casefold() for word in words)
        ]
