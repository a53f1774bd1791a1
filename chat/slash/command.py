"""One slash command: names, help texts, completion and handler."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from swiftchat.chat.slash.state import ChatState


class Next(Enum):
    """The step of the prompt loop that follows a command."""

    PROMPT = auto()
    REGENERATE = auto()  # answer the last message again
    CONTINUE = auto()  # extend the last answer
    COMPARE = auto()  # answer it with `ChatState.compared`
    HINT_UNDONE = auto()  # say once how /undo is taken back
    LEAVE = auto()


Handler = Callable[[ChatState, str], Next | None]  # None means Next.PROMPT
Completion = tuple[str, ...] | Callable[[ChatState], Mapping[str, str]]


def always(argument: str) -> bool:
    return True


def never(argument: str) -> bool:
    return False


_MAX_DIGITS = 9


def count_of(argument: str) -> int | None:
    """Return the number that an argument is, None for another text; not above 10^9.

    No conversation has so many messages, and Python converts no text of thousands of digits.
    """
    if not argument.isdecimal():
        return None
    digits = argument.lstrip("0") or "0"
    return int(digits) if len(digits) <= _MAX_DIGITS else 10**_MAX_DIGITS


@dataclass(frozen=True)
class Command:
    """A command that is typed at the prompt.

    `arguments` is their placeholder in help texts, `summary` the line in the list of commands,
    `details` the text of `/help NAME`. `completion` are the words that Tab offers as arguments, or
    a function that returns them with a description each. `is_aside` returns whether the command
    with an argument only prints, and touches no answer that comes: it runs at once while one comes,
    and output that is higher than the window is shown in a pager.
    """

    name: str
    arguments: str
    summary: str
    run: Handler
    aliases: tuple[str, ...] = ()
    completion: Completion = ()
    details: str = ""
    is_aside: Callable[[str], bool] = never

    @property
    def usage(self) -> str:
        """The command with its arguments, as `/undo [N]`."""
        space = " " if self.arguments and self.name != "!" else ""
        return f"{self.name}{space}{self.arguments}"

    @property
    def help_row(self) -> tuple[str, str]:
        """Usage and summary, for a table of commands."""
        also = f" (also {', '.join(self.aliases)})" if self.aliases else ""
        return self.usage, self.summary + also
