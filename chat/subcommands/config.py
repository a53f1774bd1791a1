"""`swiftchat config`: settings and their origin."""

import click

from swiftchat.chat.terminal.sanitize import sanitize


@click.group(invoke_without_command=True)
@click.pass_context
def config(ctx: click.Context) -> None:
    """Show the settings and the path of the configuration file."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(config_show)


@config.command(name="path")
def config_path_command() -> None:
    """Print the path of the configuration file, which may not exist yet."""
    from swiftchat.chat.options.config import config_path

    print(config_path())


@config.command(name="show")
@click.pass_context
def config_show(ctx: click.Context) -> None:
    """Print every setting and its origin."""
    from swiftchat.chat.options.chat_options import CONFIG_NAMES
    from swiftchat.chat.options.config import defaults

    root = ctx.find_root()
    default_values = defaults(root.params["model"])
    origins: dict[click.core.ParameterSource | None, str] = {
        click.core.ParameterSource.COMMANDLINE: "flag",
        click.core.ParameterSource.ENVIRONMENT: "environment",
        click.core.ParameterSource.DEFAULT_MAP: "config file",
    }
    for name in sorted(CONFIG_NAMES):
        source = root.get_parameter_source(name)
        value, origin = root.params[name], origins.get(source, "default")
        if value is None:
            value, origin = default_values.get(name, (None, "default"))
        print(f"{name:18} {sanitize('–' if value is None else str(value)):24} {origin}")
