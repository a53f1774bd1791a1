"""A tool: what the model is told of it, and what a call would do, before it is done."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# The source of the tools that need no server; no server has an empty name.
BUILT_IN = ""


@dataclass(frozen=True)
class Action:
    """A call that has been checked and not been made: `run` makes it, and returns its result.

    `rows` show what it will do, each a part of the theme and a line; without any the arguments do.
    `warning` says why the user is asked every time. A user may allow all actions of one `kind`.
    """

    run: Callable[[], str]
    kind: str
    rows: Sequence[tuple[str, str]] = ()
    warning: str = ""


@dataclass(frozen=True)
class Tool:
    """A tool; the model calls it by `name`, which is its own name unless two are the same.

    `prepare` returns the action of a call. It changes nothing, and raises `SwiftchatError` for
    arguments that the tool does not take. `edited` is the argument that the user may change before
    the call; empty: all of them.
    """

    name: str
    source: str
    own_name: str
    description: str
    schema: dict[str, Any]
    prepare: Callable[[dict[str, Any]], Action]
    edited: str = ""

    @property
    def label(self) -> str:
        """The name for the user, as `read`, or `files.read` of the server `files`."""
        return f"{self.source}.{self.own_name}" if self.source else self.own_name

    @property
    def spec(self) -> dict[str, Any]:
        """The tool as chat templates expect it."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.schema,
        }
        return {"type": "function", "function": function}
