"""The picker of `/resume`: arrows choose a conversation, typing filters, its end is previewed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prompt_toolkit import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.data_structures import Point
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import (
    BufferControl,
    Dimension,
    FormattedTextControl,
    HSplit,
    Layout,
    Window,
)
from prompt_toolkit.layout.processors import BeforeInput

from swiftchat.chat.history.conversation import SHORT_ID
from swiftchat.chat.history.listing import format_time
from swiftchat.chat.history.search import fold
from swiftchat.chat.terminal.sanitize import sanitize

_MAX_LISTED_ROWS = 10
_MAX_PREVIEW_ROWS = 6
_HELP = "↑ ↓ choose · type to filter · Enter opens · Esc goes back"


class SessionPicker:
    """Lets the user choose among the rows of `SessionStore.recent`.

    `preview` returns the text below the list for the id of a conversation; it is called once for
    each that is chosen.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], preview: Callable[[str], str]) -> None:
        self._rows = rows
        self._preview = preview
        self._previews: dict[str, str] = {}
        self._index = 0
        self._filter = Buffer(multiline=False, on_text_changed=lambda _: self._choose(0))
        self.app: Application[str | None] = Application(
            layout=Layout(self._windows()), key_bindings=self._keys(), erase_when_done=True
        )

    def run(self) -> str | None:
        """Return the id of the chosen conversation, None if the user goes back."""
        return self.app.run()

    @property
    def matches(self) -> list[Mapping[str, Any]]:
        """The rows whose id, name or title contain all words of the filter, in any case."""
        words = fold(self._filter.text).split()
        return [row for row in self._rows if all(word in _searched(row) for word in words)]

    def _choose(self, index: int) -> None:
        self._index = max(0, min(index, len(self.matches) - 1))

    def _windows(self) -> HSplit:
        num_rows = min(len(self._rows), _MAX_LISTED_ROWS)
        listed = FormattedTextControl(
            self._list, get_cursor_position=lambda: Point(0, self._index), show_cursor=False
        )
        return HSplit(
            [
                Window(
                    BufferControl(self._filter, input_processors=[BeforeInput("resume: ")]),
                    height=1,
                ),
                Window(listed, height=Dimension(min=1, preferred=num_rows, max=num_rows)),
                Window(
                    FormattedTextControl(self._end),
                    height=Dimension(min=0, preferred=_MAX_PREVIEW_ROWS, max=_MAX_PREVIEW_ROWS),
                    style="class:preview fg:ansibrightblack",
                ),
                Window(FormattedTextControl(_HELP), height=Dimension(min=0, max=1)),
            ]
        )

    def _list(self) -> StyleAndTextTuples:
        lines: StyleAndTextTuples = []
        for number, row in enumerate(self.matches):
            mark, style = (">", "reverse") if number == self._index else (" ", "")
            title = " ".join(sanitize(row["name"] or row["title"]).split())
            line = f"{mark} {row['id'][:SHORT_ID]}  {format_time(row['updated'])}  {title}"
            lines += [(style, line), ("", "\n")]
        return lines[:-1] or [("", "no conversation matches")]

    def _end(self) -> str:
        matches = self.matches
        if not matches:
            return ""
        session_id = matches[self._index]["id"]
        if session_id not in self._previews:
            self._previews[session_id] = sanitize(self._preview(session_id))
        lines = self._previews[session_id].splitlines()
        return "\n".join(f"  │ {line}" for line in lines[-_MAX_PREVIEW_ROWS:])

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("up")
        @keys.add("c-p")
        def _up(event: KeyPressEvent) -> None:
            self._choose(self._index - 1)

        @keys.add("down")
        @keys.add("c-n")
        def _down(event: KeyPressEvent) -> None:
            self._choose(self._index + 1)

        @keys.add("pageup")
        def _page_up(event: KeyPressEvent) -> None:
            self._choose(self._index - _MAX_LISTED_ROWS)

        @keys.add("pagedown")
        def _page_down(event: KeyPressEvent) -> None:
            self._choose(self._index + _MAX_LISTED_ROWS)

        @keys.add("enter")
        def _open(event: KeyPressEvent) -> None:
            if matches := self.matches:
                event.app.exit(result=matches[self._index]["id"])

        @keys.add("escape", eager=True)
        @keys.add("c-c")
        @keys.add("c-d")
        @keys.add("<sigint>")
        def _back(event: KeyPressEvent) -> None:
            event.app.exit(result=None)

        return keys


def _searched(row: Mapping[str, Any]) -> str:
    return fold(f"{row['id']} {row['name'] or ''} {row['title']}")
