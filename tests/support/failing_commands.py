"""swiftchat with the fake engine, in which every slash command raises an unforeseen error.

`failing_commands.py FOLDER SCRIPT [OPTION…]`: see `fake_engine`.
"""

import os
from dataclasses import replace
from pathlib import Path

from swiftchat.chat.slash.command import Next
from swiftchat.chat.slash.registry import BY_NAME
from swiftchat.chat.slash.state import ChatState
from tests.support import fake_engine
from tests.support.program import Program
from tests.support.terminal import Terminal


def open_failing_chat(program: Program, *answers: object, columns: int = 80) -> Terminal:
    """Open a chat in which every command fails, in a terminal."""
    executable, _, *args = program.command(*answers)
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    terminal = Terminal(executable, [__file__, *args], columns, PYTHONPATH=paths)
    terminal.wait_for(">>>", 60)
    return terminal


def _fail(state: ChatState, argument: str) -> Next | None:
    raise KeyError("unforeseen\x1b[2J")


def main() -> None:
    for name, command in BY_NAME.items():
        BY_NAME[name] = replace(command, run=_fail)
    fake_engine.main()


if __name__ == "__main__":
    main()
