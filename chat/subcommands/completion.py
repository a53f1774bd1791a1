"""Shell completion: the scripts, and what Tab offers for names. No torch, and nothing slow.

Each function takes click's (context, parameter, what was typed) and returns what may stand
there. Nothing here changes a file; what cannot be read offers nothing: a shell shows no errors.
"""

from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem, get_completion_class

from swiftchat.chat.terminal.sanitize import sanitize

COMPLETE_VARIABLE = "_SWIFTCHAT_COMPLETE"  # through which a shell asks


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    \b
    bash  eval "$(swiftchat completion bash)"     in ~/.bashrc
    zsh   eval "$(swiftchat completion zsh)"      in ~/.zshrc
    fish  swiftchat completion fish > ~/.config/fish/completions/swiftchat.fish

    Tab then completes options, commands, models, conversations, roles, templates and topics.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    print(kind(ctx.find_root().command, {}, "swiftchat", COMPLETE_VARIABLE).source())


def complete_models(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Models on this machine, and files."""
    from swiftchat.weights.store import default_store

    found = _fitting(((name, "") for name in default_store().names()), incomplete)
    return [*found, CompletionItem(incomplete, type="file")]


def complete_stored_models(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from swiftchat.weights.store import default_store

    return _fitting(((name, "") for name in default_store().names()), incomplete)


def complete_downloads(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Short names, which stand for repositories of the hub."""
    from swiftchat.weights.hub.aliases import known_names, repository_of

    return _fitting(((name, repository_of(name) or "") for name in known_names()), incomplete)


def complete_sessions(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Conversations by name, or else by the beginning of the id."""
    from swiftchat.chat.history.store import names_in, sessions_path
    from swiftchat.chat.subcommands.sessions import SHORT_ID

    rows = names_in(sessions_path())
    return _fitting(((name or one[:SHORT_ID], title) for one, name, title in rows), incomplete)


def complete_roles(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from swiftchat.chat.options.roles import role_names

    return _fitting(((name, "") for name in role_names()), incomplete)


def complete_templates(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The built-in ones, and files."""
    from swiftchat.tokenizer.template.builtin import BUILT_IN

    found = _fitting(((name, "") for name in BUILT_IN), incomplete)
    return [*found, CompletionItem(incomplete, type="file")]


def complete_shapes(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from swiftchat.weights.model.dummy import DUMMY_CONFIGS

    found = _fitting(((name, "") for name in DUMMY_CONFIGS), incomplete)
    return [*found, CompletionItem(incomplete, type="file")]


def complete_topics(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Pages of help, and commands."""
    from swiftchat.chat.subcommands.help_pages import PAGES

    group = ctx.find_root().command
    commands = group.list_commands(ctx) if isinstance(group, click.Group) else []
    topics = {**dict.fromkeys(commands, ""), **{name: one.summary for name, one in PAGES.items()}}
    return _fitting(topics.items(), incomplete)


def _fitting(names: Iterable[tuple[str, str]], incomplete: str) -> list[CompletionItem]:
    """Those that begin with what was typed; names that no line of a shell can hold left out."""
    return [
        CompletionItem(name, help=sanitize(" ".join(about.split())[:60]) or None)
        for name, about in names
        if name.startswith(incomplete) and name.isprintable()
    ]
