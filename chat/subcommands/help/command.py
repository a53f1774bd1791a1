"""`swiftchat help`: help pages, the help of a command, the manual page."""

import difflib
import sys

import click
from click.shell_completion import CompletionItem

from swiftchat.chat.help.columns import two_columns
from swiftchat.chat.help.pages import PAGES, page, parameter_help
from swiftchat.chat.help.wrap import page_width, wrapped
from swiftchat.chat.options.completion import matching
from swiftchat.errors import UsageError


def complete_topics(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete topics and commands."""
    group = ctx.find_root().command
    commands = group.list_commands(ctx) if isinstance(group, click.Group) else []
    topics = {**dict.fromkeys(commands, ""), **{name: one.summary for name, one in PAGES.items()}}
    return matching(topics.items(), incomplete)


@click.command(name="help")
@click.argument("topic", default="", shell_complete=complete_topics)
@click.option("--man", is_flag=True, help="Print the manual page in roff, for man.")
@click.pass_context
def help_command(ctx: click.Context, topic: str, man: bool) -> None:
    """Show the page about TOPIC or the help of a command; without TOPIC, list the topics.

    `swiftchat help --man > swiftchat.1` writes the manual page; copy it to a folder of man, such
    as ~/.local/share/man/man1.
    """
    root = ctx.find_root()
    assert isinstance(root.command, click.Group)
    if man:
        from swiftchat.chat.subcommands.help.man_page import man_page

        sys.stdout.write(man_page(root.command))
    elif topic in PAGES:
        from swiftchat.chat.slash.registry import command_table

        print(page(topic, command_table, page_width()), end="")
    elif not topic:
        rows = [(f"swiftchat help {name}", found.summary) for name, found in PAGES.items()]
        rows.append(("swiftchat COMMAND --help", "Options of a command."))
        print(two_columns(rows, page_width()))
    elif command := root.command.get_command(root, topic):
        with click.Context(command, info_name=topic, parent=root) as inner:
            print(command.get_help(inner))
    elif text := parameter_help(topic):
        print("".join(wrapped(line, page_width()) for line in text.splitlines()), end="")
    else:
        known = (*PAGES, *root.command.list_commands(root))
        near = difflib.get_close_matches(topic, known, n=1)
        suggestion = f"swiftchat help {near[0]}" if near else "swiftchat help"
        raise UsageError(f"unknown help topic {topic!r}", suggestion)
