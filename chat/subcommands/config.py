"""`swiftchat config`: settings and their origin."""

import json
import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from swiftchat.chat.options.option_types import Number
from swiftchat.chat.terminal.output import print_line, print_notice
from swiftchat.errors import UsageError

if TYPE_CHECKING:
    from swiftchat.chat.history.conversation import Message
    from swiftchat.chat.options.project import Project

_NAME_WIDTH = 19


@click.group(invoke_without_command=True)
@click.pass_context
def config(ctx: click.Context) -> None:
    """Show the settings and the path of the configuration file."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(config_show)


@config.command(name="path")
def config_path_command() -> None:
    """Print the path of the configuration file, which may not exist yet."""
    from swiftchat.chat.options.user_files import config_path

    print(config_path())


@config.command(name="edit")
def config_edit() -> None:
    """Open the configuration file in $EDITOR; a new one has all options as comments."""
    from swiftchat.chat.options.option_files import load_config_file
    from swiftchat.chat.options.user_files import config_path
    from swiftchat.chat.terminal.editor import edit_text
    from swiftchat.weights.files.output import open_output

    path = config_path()
    before = path.read_text("utf-8", "replace") if path.is_file() else "".join(_template())
    text = edit_text(before, ".toml")
    if text is None or text == before:
        print_notice("nothing is changed")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_output(path) as file:
        file.write(text.encode())
    load_config_file()
    print_notice(f"written to {path}")


def _template() -> Iterator[str]:
    """Yield the lines of a configuration file that sets nothing."""
    from swiftchat.chat.options.chat_options import FILE_NAMES, SECTIONS

    yield "# Options of swiftchat: remove the first # of a line, and set the value.\n"
    for section, options in SECTIONS.items():
        found = [option for option in options if option.name in FILE_NAMES]
        yield f"\n# {section}\n" if found else ""
        for option in found:
            yield textwrap.indent(textwrap.fill(option.help or "", 96), "#   ") + "\n"
            yield f"# {option.name} = {_example(option)}\n"


def _example(option: click.Option) -> str:
    """Return the default of an option as TOML, or an example of the right type."""
    if option.multiple:
        return "[]"
    if isinstance(option.default, str | int | float):
        return json.dumps(option.default)
    if choices := getattr(option.type, "choices", ()):
        return json.dumps(choices[0])
    return "0" if isinstance(option.type, Number) else '""'


@config.command(name="show")
@click.pass_context
def config_show(ctx: click.Context) -> None:
    """Print every setting and its origin."""
    from swiftchat.chat.options.chat_options import FILE_NAMES
    from swiftchat.chat.options.model_defaults import defaults

    root = ctx.find_root()
    project: Project | None = root.obj
    from_role = _role_values(root)
    below_role = {"config file", "default"}
    if root.get_parameter_source("role") is click.core.ParameterSource.COMMANDLINE:
        below_role.add("project file")
    default_values = defaults(root.params["model"])
    origins: dict[click.core.ParameterSource | None, str] = {
        click.core.ParameterSource.COMMANDLINE: "flag",
        click.core.ParameterSource.ENVIRONMENT: "environment",
        click.core.ParameterSource.DEFAULT_MAP: "config file",
    }
    for name in sorted(FILE_NAMES | {"role"}):
        source = root.get_parameter_source(name)
        value, origin = root.params[name], origins.get(source, "default")
        if origin == "config file" and project is not None and name in project.values:
            origin = "project file"
        if name in from_role and origin in below_role:
            value, origin = from_role[name], f"role {root.params['role']}"
        if value is None:
            value, origin = default_values.get(name, (None, "default"))
        print_line(f"{name:{_NAME_WIDTH - 1}} {_value_text(value):24} {origin}", indent=_NAME_WIDTH)
    if project is not None:
        print_line(f"project file: {project.path}")
        for notice in project.notices:
            print_notice(f"warning: {notice}")


@config.command(name="theme")
@click.pass_context
def config_theme(ctx: click.Context) -> None:
    """Show a short chat in each theme; * marks the one that is set."""
    import os
    import shutil
    from dataclasses import replace

    from swiftchat.chat.options.table import Options
    from swiftchat.chat.render.reprint import conversation_rows
    from swiftchat.chat.render.style import choose_style, theme_of
    from swiftchat.chat.terminal.theme import THEMES

    options = Options(**ctx.find_root().params)
    style = choose_style(options, os.environ, at_terminal=sys.stdout.isatty())
    if not style.is_colored:
        raise UsageError(
            "colors are off here", "use a terminal without NO_COLOR, or --color always"
        )
    width = shutil.get_terminal_size().columns
    for name in THEMES:
        shown = replace(options, theme=name)
        painted = replace(style, is_colored=name != "none", theme=theme_of(shown, os.environ))
        print(f"{'*' if name == options.theme else ' '} {name}\n")
        for row in conversation_rows(painted, _sample(), width - 4):
            print(f"    {row}".rstrip())
        for part, text in _SAMPLE_NOTICES:
            print(f"    {painted.paint(part, text)}")
        print()


_SAMPLE_ANSWER = """## A heading

Text with **strong** words, `code` and a [link](https://example.org).

```python
def area(width: float) -> str:
    return f"{width * 2:.1f} m"  # a comment
```
"""
_SAMPLE_NOTICES = (
    ("notice", "a notice of the program"),
    ("error", "error: a fault"),
    ("hint", "hint: what to do about it"),
)


def _sample() -> "list[Message]":
    """Return the messages of the preview."""
    from swiftchat.chat.history.conversation import Conversation
    from swiftchat.chat.history.tool_call import ToolCall

    talk, call = Conversation(), ToolCall("add", {"a": 2, "b": 3})
    talk.add("user", "How do I write this?")
    talk.add("assistant", "").tool_calls = [call]
    talk.add_tool_result(call, "5")
    talk.add("assistant", _SAMPLE_ANSWER, reasoning="?")
    return talk.messages


def _value_text(value: object) -> str:
    if isinstance(value, tuple):
        value = " ".join(json.dumps(text, ensure_ascii=False) for text in value) or None
    return "–" if value is None else str(value)


def _role_values(root: click.Context) -> dict[str, Any]:
    """Return the options of the role that is chosen."""
    from swiftchat.chat.options.roles import load_role

    name = root.params["role"]
    return {} if name is None else load_role(name).settings
