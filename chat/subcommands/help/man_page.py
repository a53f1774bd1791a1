"""The manual page for `man`: options, commands and help pages in roff.

click-man is not used: it creates one page for each command and does not support topics.
"""

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import version

import click

from swiftchat.chat.help.pages import page
from swiftchat.chat.help.setup_pages import EXIT_CODES
from swiftchat.chat.options.chat_options import SECTIONS
from swiftchat.chat.options.help_layout import EXAMPLES
from swiftchat.chat.slash.registry import command_table

_TOPICS = (
    "keys",
    "commands",
    "sessions",
    "roles",
    "templates",
    "sampling",
    "parameters",
    "gpu",
    "config",
)


def man_page(root: click.Group) -> str:
    """Return the manual page of the root command, with man(7) macros."""
    return "\n".join(_lines(root)) + "\n"


def _lines(root: click.Group) -> Iterator[str]:
    ctx = click.Context(root, info_name="swiftchat")
    yield f'.TH SWIFTCHAT 1 "" "swiftchat {version("swiftchat")}" "User Commands"'
    yield from (".SH NAME", r"swiftchat \- talk to open\-weights language models on this machine")
    yield from (".SH SYNOPSIS", r".B swiftchat", r"[\fIOPTION\fR]... [\fICOMMAND\fR]")
    yield from (
        ".SH DESCRIPTION",
        _escaped(
            "Without arguments it opens a conversation; with -p it answers once. The answer goes "
            "to stdout, everything else to stderr."
        ),
    )
    yield ".SH OPTIONS"
    for title, options in SECTIONS.items():
        yield f".SS {_escaped(title)}"
        yield from _records(ctx, options)
    yield ".SH COMMANDS"
    for name in root.list_commands(ctx):
        yield from _command(ctx, root.get_command(ctx, name), name)
    for topic in _TOPICS:
        yield f".SH {_escaped(topic.upper())}"
        yield from _verbatim(page(topic, command_table))
    yield ".SH EXIT STATUS"
    for code, meaning in EXIT_CODES:
        yield from (".TP", f".B {code}", _escaped(meaning))
    yield ".SH EXAMPLES"
    for line, meaning in EXAMPLES:
        yield from (".TP", f".B {_escaped(line)}", _escaped(meaning))


def _command(parent: click.Context, command: click.Command | None, name: str) -> Iterator[str]:
    if command is None or not _is_first_name(parent, command, name):
        return
    ctx = click.Context(command, info_name=name, parent=parent)
    pieces = " ".join(command.collect_usage_pieces(ctx))
    yield f".SS {_escaped(f'{ctx.command_path} {pieces}')}"
    if name == "chat":
        yield _escaped("Same as swiftchat without a command; takes all options above.")
        return
    for paragraph in (command.help or "").split("\n\n"):
        if paragraph.startswith("\b\n"):  # click's mark for preformatted lines
            yield from _verbatim(paragraph.removeprefix("\b\n"))
        else:
            yield from (".PP", _escaped(" ".join(paragraph.split())))
    yield from _records(ctx, (p for p in command.params if isinstance(p, click.Option)))
    if isinstance(command, click.Group):
        for inner in command.list_commands(ctx):
            yield from _command(ctx, command.get_command(ctx, inner), inner)


def _is_first_name(ctx: click.Context, command: click.Command, name: str) -> bool:
    """Return whether no earlier name in the list stands for the same command."""
    group = ctx.command
    assert isinstance(group, click.Group)
    names = group.list_commands(ctx)
    return next(one for one in names if group.get_command(ctx, one) is command) == name


def _records(ctx: click.Context, params: Iterable[click.Parameter]) -> Iterator[str]:
    for record in filter(None, (param.get_help_record(ctx) for param in params)):
        yield from (".TP", f".B {_escaped(record[0])}", _escaped(record[1]))


def _verbatim(text: str) -> Iterator[str]:
    yield from (".nf", *map(_escaped, text.rstrip("\n").split("\n")), ".fi")


def _escaped(text: str) -> str:
    """Escape text for roff, including lines that would be read as requests."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace('"', r"\(dq")
    text = re.sub(r"^(?=[.'])", r"\\&", text)
    return "".join(c if c.isascii() else f"\\[u{ord(c):04X}]" for c in text)
