"""`swiftchat config`: where settings come from."""

import click

from swiftchat.chat.terminal.sanitize import sanitize


@click.group(invoke_without_command=True)
@click.pass_context
def config(ctx: click.Context) -> None:
    """Show the configuration and where it is."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(config_show)


@config.command(name="path")
def config_path_command() -> None:
    """Print where the configuration file is (it may not exist yet)."""
    from swiftchat.chat.options.config import config_path

    print(config_path())


@config.command(name="show")
@click.pass_context
def config_show(ctx: click.Context) -> None:
    """Print every setting and where it comes from."""
    from swiftchat.chat.options.config import defaults

    root = ctx.find_root()
    unsaid = defaults(root.params["model"])
    origins: dict[click.core.ParameterSource | None, str] = {
        click.core.ParameterSource.COMMANDLINE: "flag",
        click.core.ParameterSource.ENVIRONMENT: "environment",
        click.core.ParameterSource.DEFAULT_MAP: "config file",
    }
    names = {p.name for p in root.command.params if isinstance(p, click.Option) and p.envvar}
    for name in sorted(filter(None, names)):
        source = root.get_parameter_source(name)
        value, origin = root.params[name], origins.get(source, "default")
        if value is None:
            value, origin = unsaid.get(name, (None, "default"))
        print(f"{name:18} {sanitize('–' if value is None else str(value)):24} {origin}")
