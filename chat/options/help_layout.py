"""How `--help` is laid out: the everyday options for `swiftchat`, all by sections for `chat`."""

import click

# Every option of `chat` by its parameter's name, in the order it is shown.
SECTIONS: dict[str, tuple[str, ...]] = {
    "What is asked": (
        "model",
        "prompt",
        "interactive",
        "file",
        "system",
        "system_file",
        "role",
        "no_template",
        "template",
        "think",
    ),
    "Conversations": ("continue_", "session", "no_save", "overflow"),
    "The answer": (
        "max_tokens",
        "stop",
        "temp",
        "top_k",
        "top_p",
        "min_p",
        "repeat_penalty",
        "presence_penalty",
        "frequency_penalty",
        "seed",
        "logprobs",
    ),
    "How it is shown": (
        "json",
        "stream_json",
        "extract",
        "raw",
        "color",
        "accessible",
        "editing_mode",
        "stats",
        "quiet",
        "debug",
    ),
    "The machine": (
        "ctx_size",
        "device",
        "tp",
        "pp",
        "dtype",
        "kv_dtype",
        "threads",
        "connect",
        "token_file",
        "offline",
        "dummy",
    ),
}
_EVERYDAY = (
    "model",
    "prompt",
    "interactive",
    "file",
    "system",
    "role",
    "continue_",
    "session",
    "max_tokens",
    "temp",
    "ctx_size",
    "json",
    "extract",
    "quiet",
    "version",
    "help",
)

EXAMPLES = (
    ("swiftchat", "talk"),
    ('swiftchat -p "Why is the sky blue?"', "ask once"),
    ('git diff | swiftchat -p "Review this:"', "pipe"),
    ("swiftchat -c", "go on with the last conversation"),
    ("swiftchat -m ./model.gguf", "run a file"),
    ("swiftchat download qwen3:8b", "bring a model from the hub"),
)


class ChatCommand(click.Command):
    """Shows its options by sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        named = {name for names in SECTIONS.values() for name in names}
        for title, names in SECTIONS.items():
            write_options(self, ctx, formatter, title, names)
        # An option that no section has yet must not be lost.
        others = tuple(p.name for p in self.get_params(ctx) if p.name and p.name not in named)
        write_options(self, ctx, formatter, "Other", others)


def write_everyday_options(
    command: click.Command, ctx: click.Context, formatter: click.HelpFormatter
) -> None:
    with formatter.section("Examples"):
        formatter.write_dl(list(EXAMPLES), col_max=40)
    write_options(command, ctx, formatter, "Everyday options", _EVERYDAY)


def write_options(
    command: click.Command,
    ctx: click.Context,
    formatter: click.HelpFormatter,
    title: str,
    names: tuple[str, ...],
) -> None:
    """A section with the options of these parameters, in this order."""
    params = {param.name: param for param in command.get_params(ctx)}
    records = [params[name].get_help_record(ctx) for name in names if name in params]
    with formatter.section(title):
        formatter.write_dl([record for record in records if record])
