"""Layout of `--help`: everyday options for `swiftchat`, all options by section for `chat`."""

from collections.abc import Iterable

import click

from swiftchat.chat.options.chat_options import CHAT_OPTIONS, SECTIONS

EXAMPLES = (
    ("swiftchat", "chat"),
    ('swiftchat -p "Why is the sky blue?"', "ask once"),
    ('git diff | swiftchat -p "Review this:"', "pipe"),
    ("swiftchat -c", "continue the last conversation"),
    ("swiftchat -m ./model.gguf", "run a file"),
    ("swiftchat download qwen3:8b", "download a model from the hub"),
)
_EVERYDAY = (
    *("model", "prompt", "interactive", "file", "system", "role", "continue_", "session"),
    *("max_tokens", "temperature", "ctx_size", "json", "extract", "quiet", "version", "help"),
)


class ChatCommand(click.Command):
    """A command whose help lists its options by section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, options in SECTIONS.items():
            _write_options(ctx, formatter, title, options)
        others = [param for param in self.get_params(ctx) if param not in CHAT_OPTIONS]
        _write_options(ctx, formatter, "Other", others)


def write_everyday_options(
    command: click.Command, ctx: click.Context, formatter: click.HelpFormatter
) -> None:
    """Write the examples and the everyday options of `swiftchat --help`."""
    with formatter.section("Examples"):
        formatter.write_dl(list(EXAMPLES), col_max=40)
    params = {param.name: param for param in command.get_params(ctx)}
    everyday = [params[name] for name in _EVERYDAY if name in params]
    _write_options(ctx, formatter, "Everyday options", everyday)


def _write_options(
    ctx: click.Context,
    formatter: click.HelpFormatter,
    title: str,
    params: Iterable[click.Parameter],
) -> None:
    records = [param.get_help_record(ctx) for param in params]
    with formatter.section(title):
        formatter.write_dl([record for record in records if record])
