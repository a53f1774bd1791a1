"""What a chat tells the terminal besides text: its title, where prompts begin, when an answer ends.

Only terminals that are known to take a sequence get it: others could print it. The bell is for
every terminal, because an unknown character would not be drawn.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from swiftchat.chat.terminal.sanitize import sanitize

_LONG_ANSWER_S = 10.0
_MAX_CHARACTERS = 80
_BELL = "\a"
_SAVE_TITLE, _RESTORE_TITLE = "\x1b[22;2t", "\x1b[23;2t"


@dataclass(frozen=True)
class _Known:
    """What a terminal takes besides a title: prompt marks (OSC 133), a notification (OSC 9, 777).

    `notification` has `{}` in the place of the text; by default the bell rings.
    """

    notification: str = _BELL
    has_marks: bool = True


_OSC_9, _OSC_777 = "\x1b]9;{}\a", "\x1b]777;notify;swiftchat;{}\a"
_BY_PROGRAM = {  # TERM_PROGRAM
    "iTerm.app": _Known(_OSC_9),
    "WezTerm": _Known(_OSC_777),
    "ghostty": _Known(_OSC_777),
    "vscode": _Known(),
    "Apple_Terminal": _Known(has_marks=False),
}
_BY_VARIABLE = {
    "KITTY_WINDOW_ID": _Known(_OSC_9),
    "WT_SESSION": _Known(),
    "KONSOLE_VERSION": _Known(),
}
_BY_TERM = {
    "xterm-kitty": _Known(_OSC_9),
    "foot": _Known(_OSC_777),
    "foot-extra": _Known(_OSC_777),
}


_TMUX = _Known(has_marks=False)  # before 3.4 marks are unknown to it


def _known(env: Mapping[str, str]) -> _Known | None:
    """Return what the terminal takes, None for an unknown one and for GNU screen."""
    # The other variables are those of the terminal in which these two were started.
    if env.get("TMUX"):
        return _TMUX
    if env.get("STY"):
        return None
    found = _BY_PROGRAM.get(env.get("TERM_PROGRAM", "")) or _BY_TERM.get(env.get("TERM", ""))
    return found or next((known for name, known in _BY_VARIABLE.items() if env.get(name)), None)


class Announcements:
    """Writes announcements to the terminal; nothing if `is_on` is False."""

    def __init__(
        self, env: Mapping[str, str], write: Callable[[str], None], *, is_on: bool
    ) -> None:
        self._write = write
        self._is_on = is_on
        self._known = _known(env) if is_on else None
        self._title: str | None = None

    def show_title(self, title: str) -> None:
        """Set the title of the window, whose earlier one `close` restores."""
        title = _plain(f"swiftchat · {title}" if title else "swiftchat")
        if self._known is not None and title != self._title:
            self._write(("" if self._title else _SAVE_TITLE) + f"\x1b]2;{title}\a")
            self._title = title

    def begin_prompt(self) -> None:
        """Mark the row on which the prompt is drawn next."""
        self._mark("A")

    def begin_output(self) -> None:
        """Mark the row on which the answer, or the output of a command, begins."""
        self._mark("C")

    def end_output(self) -> None:
        self._mark("D")

    def end_answer(self, seconds: float, title: str) -> None:
        """Tell the user, who may look elsewhere by now, that a long answer has ended."""
        if self._is_on and seconds > _LONG_ANSWER_S:
            notification = self._known.notification if self._known else _BELL
            self._write(notification.format(_plain(f"answered: {title}")))

    def close(self) -> None:
        if self._title is not None:
            self._write(_RESTORE_TITLE)
            self._title = None

    def _mark(self, kind: str) -> None:
        if self._known is not None and self._known.has_marks:
            self._write(f"\x1b]133;{kind}\a")


def _plain(text: str) -> str:
    """Return a text that cannot end a sequence or begin one of its fields."""
    return " ".join(sanitize(text).split()).replace(";", ",")[:_MAX_CHARACTERS]
