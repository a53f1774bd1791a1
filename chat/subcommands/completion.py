"""`swiftchat completion`: print the completion script of a shell."""

import click
from click.shell_completion import get_completion_class

from swiftchat.chat.options.completion import COMPLETE_VARIABLE
from swiftchat.chat.options.shells import register_shells


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    \b
    bash  eval "$(swiftchat completion bash)"     in ~/.bashrc
    zsh   eval "$(swiftchat completion zsh)"      in ~/.zshrc
    fish  swiftchat completion fish > ~/.config/fish/completions/swiftchat.fish

    Tab completes options, commands, models, conversations, roles, templates and topics.
    """
    register_shells()
    kind = get_completion_class(shell)
    assert kind is not None
    print(kind(ctx.find_root().command, {}, "swiftchat", COMPLETE_VARIABLE).source())
