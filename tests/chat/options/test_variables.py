"""SWIFTCHAT_* variables that nothing reads are named when a chat starts."""

from collections.abc import Iterator
from pathlib import Path

import click

from swiftchat.chat import cli
from swiftchat.chat.options.chat_options import CHAT_OPTIONS
from swiftchat.chat.options.variables import unread_variables
from tests.support import fake_engine
from tests.support.program import Program


def all_variables(command: click.Command, ctx: click.Context) -> Iterator[str]:
    """Yield the variables of a command's options and of its subcommands'."""
    for option in command.params:
        names = option.envvar or ()
        yield from (names,) if isinstance(names, str) else names
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            found = command.get_command(ctx, name)
            assert found is not None
            yield from all_variables(found, click.Context(found, parent=ctx))


def test_variables_of_all_commands_are_known() -> None:
    names = set(all_variables(cli.swiftchat, click.Context(cli.swiftchat)))
    assert {"SWIFTCHAT_MODEL", "SWIFTCHAT_KEEP_ALIVE", "SWIFTCHAT_TOP_K"} <= names
    assert unread_variables(names, CHAT_OPTIONS) == []


def test_sentences() -> None:
    names = ("PATH", "_SWIFTCHAT_COMPLETE", "SWIFTCHAT_XYZ", "SWIFTCHAT_TEMPERATUR")
    assert unread_variables(names, CHAT_OPTIONS) == [
        "nothing reads the variable SWIFTCHAT_TEMPERATUR; did you mean SWIFTCHAT_TEMPERATURE?",
        "nothing reads the variable SWIFTCHAT_XYZ",
    ]


def test_a_note_precedes_the_answer(tmp_path: Path) -> None:
    program = Program(fake_engine.make_folder(tmp_path / "model"))
    done = program.run("-p", "hello", SWIFTCHAT_MODLE="x")
    assert (done.returncode, done.stdout) == (0, b"An answer.\n")
    note = b"note: nothing reads the variable SWIFTCHAT_MODLE; did you mean SWIFTCHAT_MODEL?\n"
    assert note in done.stderr
    assert b"MODLE" not in program.run("-p", "hello", "-q", SWIFTCHAT_MODLE="x").stderr
