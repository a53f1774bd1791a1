"""The options of `swiftchat` and `swiftchat chat`, by the sections of `--help`."""

import copy
import os
from collections.abc import Mapping
from typing import Any

import click

from swiftchat.chat.options.completion import (
    complete_files,
    complete_models,
    complete_roles,
    complete_sessions,
    complete_shapes,
    complete_templates,
    complete_variables,
)
from swiftchat.chat.options.config import config_path
from swiftchat.chat.options.parameters import PARAMETERS, TEXTS_PARAMETERS, Parameter
from swiftchat.engine.api.params import MAX_LOGPROBS
from swiftchat.errors import UsageError


class RankCount(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.2
    """A number of ranks, 1 or more, or `auto`."""

    name = "N|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "auto" or isinstance(value, int):
            return value
        if not str(value).isdecimal() or int(value) < 1:
            self.fail(f"{value!r} is neither a positive number nor auto", param, ctx)
        return int(value)


class Number(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.2
    """A value of a parameter; `off` unsets it."""

    def __init__(self, parameter: Parameter) -> None:
        self.name = "n"  # the placeholder in help texts
        self._parameter = parameter

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._parameter.parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Colors(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.2
    """Colors as `NAME=STYLE,…`, in a configuration file also as a table."""

    name = "name=style,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from swiftchat.chat.terminal.theme import parse_colors

        if isinstance(value, dict):
            value = ",".join(f"{name}={style}" for name, style in value.items())
        try:
            parse_colors(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class ChatOption(click.Option):
    """An option whose errors name the place of the value: flag, variable or file.

    Help texts show its short flag and one long flag, not the aliases of a parameter.
    """

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        shown = copy.copy(self)
        long = [flag for flag in self.opts if flag.startswith("--")]
        shown.opts = [flag for flag in self.opts if flag not in long[1:]]
        return click.Option.get_help_record(shown, ctx)

    def get_error_hint(self, ctx: click.Context | None) -> str:
        source = ctx and ctx.get_parameter_source(self.name or "")
        if source is click.core.ParameterSource.ENVIRONMENT:
            names = [self.envvar] if isinstance(self.envvar, str) else list(self.envvar or ())
            return next(name for name in names if os.environ.get(name))
        if source is click.core.ParameterSource.DEFAULT_MAP:
            return f"{self.name} in {config_path()}"
        return super().get_error_hint(ctx)


class TextsOption(ChatOption):
    """An option with any number of texts; a variable has one on each line."""

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        return super().type_cast_value(ctx, [value] if isinstance(value, str) else value)

    def value_from_envvar(self, ctx: click.Context) -> Any:
        text = self.resolve_envvar_value(ctx)
        return None if text is None else text.split("\n")


class ModelOption(ChatOption):
    """A model; given several times, the first value, and `compared_models` returns the others."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        parser.add_option(obj=self, opts=self.opts, dest=self.name, action="append")

    def handle_parse_result(
        self, ctx: click.Context, opts: Any, args: list[str]
    ) -> tuple[Any, list[str]]:
        if given := opts.get(self.name):
            first, *others = given
            opts = {**opts, self.name: first}
            ctx.meta[_COMPARED] = tuple(others)
        return super().handle_parse_result(ctx, opts, args)


_COMPARED = "swiftchat.compared"


def compared_models(ctx: click.Context) -> tuple[str, ...]:
    """Return the values of `-m` after the first one."""
    found: tuple[str, ...] = ctx.meta.get(_COMPARED, ())
    return found


def _option(*names: str, env: bool = True, **settings: Any) -> click.Option:
    """An option, with SWIFTCHAT_* variables and a place in the configuration file if `env`."""
    flags = [name.removeprefix("--") for name in names if name.startswith("--")]
    variables = ["SWIFTCHAT_" + flag.replace("-", "_").upper() for flag in flags]
    return ChatOption(names, envvar=variables if env else None, **settings)


def _parameter(name: str, *short: str, env: bool = True, **settings: Any) -> click.Option:
    """The option of a parameter in the table."""
    found = PARAMETERS[name]
    return _option(
        *short, *found.flags, name, env=env, type=Number(found), help=found.help, **settings
    )


def _texts(name: str) -> click.Option:
    """The option of a parameter with texts."""
    found = TEXTS_PARAMETERS[name]
    variables = ["SWIFTCHAT_" + flag[2:].replace("-", "_").upper() for flag in found.flags]
    return TextsOption(
        (*found.flags, name),
        envvar=variables,
        multiple=True,
        metavar=found.metavar,
        help=found.help,
    )


def _flag(*names: str, help: str, env: bool = True) -> click.Option:
    return _option(*names, env=env, is_flag=True, help=help)


_INPUT = (
    ModelOption(
        ("-m", "--model"),
        envvar="SWIFTCHAT_MODEL",
        help="Name, directory or .gguf file; twice: both answer.",
        shell_complete=complete_models,
    ),
    _option("-p", "--prompt", env=False, help="Answer this prompt and exit; - reads stdin."),
    _flag("-i", "--interactive", env=False, help="Continue interactively after -p."),
    _option(
        "-f",
        "--file",
        env=False,
        multiple=True,
        metavar="FILE|URL",
        shell_complete=complete_files,
        help="Put a file or page before the prompt (repeatable).",
    ),
    _option("-s", "--system", help="System prompt."),
    _option("--system-file", type=click.Path(), help="Read the system prompt from a file."),
    _option(
        "--role",
        env=False,
        metavar="NAME",
        shell_complete=complete_roles,
        help="System prompt and options of a role; see swiftchat help roles.",
    ),
    _option(
        "-v",
        "--var",
        "variables",
        env=False,
        multiple=True,
        metavar="NAME=VALUE",
        shell_complete=complete_variables,
        help="Value of a variable of the role (repeatable).",
    ),
    _flag("--no-template", env=False, help="Complete the prompt as plain text."),
    _option(
        "--template",
        metavar="NAME|FILE",
        shell_complete=complete_templates,
        help="Chat template: one of the model's, a built-in one (chatml, llama-2 …), a file.",
    ),
    _option(
        "--think",
        type=click.Choice(["auto", "on", "off"]),
        default="auto",
        help="Make the model think first, if its template has a switch for it.",
    ),
)
_CONVERSATIONS = (
    _flag("-c", "--continue", "continue_", env=False, help="Continue the last conversation."),
    _option(
        "--session",
        env=False,
        metavar="ID|NAME",
        help="Continue this conversation.",
        shell_complete=complete_sessions,
    ),
    _flag("--no-save", help="Do not save this conversation."),
    _option(
        "--overflow",
        type=click.Choice(["error", "drop-oldest"]),
        default="error",
        help="Behavior when the context is full.",
    ),
)
_ANSWER = (
    _parameter("max_tokens", "-n"),
    _parameter("min_tokens"),
    _texts("stop"),
    _texts("ban"),
    _texts("logit_bias"),
    _parameter("temperature"),
    _parameter("top_k"),
    _parameter("typical_p"),
    _parameter("min_p"),
    _parameter("top_p"),
    _parameter("top_p_decay"),
    _parameter("top_p_min"),
    _texts("top_p_reset"),
    _parameter("repeat_penalty"),
    _parameter("presence_penalty"),
    _parameter("frequency_penalty"),
    _parameter("repeat_last_n"),
    _parameter("dry_multiplier"),
    _parameter("dry_base"),
    _parameter("dry_allowed_length"),
    _texts("dry_breaker"),
    _parameter("no_repeat_ngram"),
    _parameter("seed"),
    _parameter("logprobs", env=False, is_flag=False, flag_value=5, metavar="[N]"),
    _option(
        "--prompt-logprobs",
        env=False,
        type=click.IntRange(0, MAX_LOGPROBS),
        is_flag=False,
        flag_value=5,
        metavar="[N]",
        help="The same for the tokens of the prompt, in --json.",
    ),
)
_TOOLS = (
    _option(
        "--mcp",
        env=False,
        multiple=True,
        metavar="COMMAND|FILE|URL",
        help="Give the model the tools of this MCP server (repeatable); see swiftchat help tools.",
    ),
    _option(
        "--allow-tool",
        env=False,
        multiple=True,
        metavar="NAME|all",
        help="Call this tool without asking (repeatable).",
    ),
    _option(
        "--max-tool-rounds",
        type=click.IntRange(1, 100),
        default=8,
        metavar="N",
        help="How often the model may call tools for one answer.",
    ),
)
_FORMAT = (
    _option(
        "--schema",
        env=False,
        metavar="FILE|JSON",
        shell_complete=complete_files,
        help="Answer with JSON that matches this JSON schema.",
    ),
    _flag("--json-object", env=False, help="Answer with a JSON object."),
    _option("--regex", env=False, metavar="REGEX", help="Answer with text that matches this."),
    _option(
        "--grammar",
        env=False,
        metavar="FILE",
        shell_complete=complete_files,
        help="Answer with text of this grammar (Lark or GBNF).",
    ),
    _flag("--no-schema-prompt", env=False, help="Do not show the schema to the model."),
)
_OUTPUT = (
    _flag("--json", env=False, help="Print one JSON object instead of text."),
    _flag("--stream-json", env=False, help="Print JSON lines while the answer is generated."),
    _flag("-x", "--extract", env=False, help="Print only the answer's code blocks."),
    _flag("--raw", help="Print the model's text as is: no Markdown, reasoning included."),
    _option(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        help="always renders and colors even into a pipe.",
    ),
    _option(
        "--theme",
        type=click.Choice(["auto", "dark", "light", "none"]),
        default="auto",
        help="Colors for this background; auto asks the terminal.",
    ),
    _option(
        "--colors",
        type=Colors(),
        help="Colors of parts of an answer, as code=blue,keyword=bold red.",
    ),
    _flag("--accessible", help="For screen readers: no redrawing, speaker labels."),
    _option(
        "--editing-mode",
        type=click.Choice(["emacs", "vi"]),
        default="emacs",
        help="Keys of the input line.",
    ),
    _flag("--stats", help="Print speed and token counts on stderr."),
    _flag("-q", "--quiet", help="No banner, no progress."),
    _flag("--debug", help="Print tracebacks."),
)
_MACHINE = (
    _parameter("ctx_size"),
    _option("--device", default="auto", help="auto, cpu, cuda or cuda:N."),
    _option(
        "--tp",
        type=RankCount(),
        default=1,
        help="Tensor parallelism over N GPUs; auto: as few as the model needs.",
    ),
    _option(
        "--pp",
        type=click.IntRange(1),
        default=1,
        metavar="N",
        help="Pipeline parallelism: N stages of --tp GPUs each, for GPUs with slow links.",
    ),
    _option(
        "--dtype",
        type=click.Choice(["bfloat16", "float16", "float32"]),
        help="Compute type; default: the type of the weights.",
    ),
    _option(
        "--kv-dtype",
        type=click.Choice(["auto", "int8", "fp8"]),
        default="auto",
        help="KV cache type: 8 bits allow twice the context.",
    ),
    _parameter("threads"),
    _option(
        "--connect",
        metavar="HOST:PORT|PATH",
        help="Use a running engine; see swiftchat help hosts.",
    ),
    _option("--token-file", type=click.Path(), help="File with the token of that engine."),
    _flag("--no-attach", help="Load the model even if swiftchat serve has it."),
    _flag("--offline", help="Never use the network."),
    _option(
        "--dummy",
        env=False,
        metavar="NAME|CONFIG.JSON",
        shell_complete=complete_shapes,
        help="Random weights in this shape; only the tokenizer of the model is used.",
    ),
)

SECTIONS: dict[str, tuple[click.Option, ...]] = {
    "Input": _INPUT,
    "Conversations": _CONVERSATIONS,
    "Answer": _ANSWER,
    "Tools": _TOOLS,
    "Format": _FORMAT,
    "Output": _OUTPUT,
    "Machine": _MACHINE,
}
CHAT_OPTIONS = [option for options in SECTIONS.values() for option in options]
# The options that have a variable; roles may set them too.
CONFIG_NAMES = {option.name for option in CHAT_OPTIONS if option.name and option.envvar}
# The options that the configuration file may set: also lists, which a variable could not separate.
FILE_NAMES = CONFIG_NAMES | {"mcp", "allow_tool"}


def typed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of options in their types. Raises `UsageError` for an invalid value."""
    options = {option.name: option for option in CHAT_OPTIONS if option.name in settings}
    context = click.Context(click.Command("swiftchat"))
    found = {}
    for name, value in settings.items():
        try:
            found[name] = options[name].type_cast_value(context, value)
        except click.BadParameter as error:
            raise UsageError(f"{name}: {error.message}") from None
    return found


EVERYDAY = (
    "model",
    "prompt",
    "interactive",
    "file",
    "system",
    "role",
    "continue_",
    "session",
    "max_tokens",
    "temperature",
    "ctx_size",
    "json",
    "extract",
    "quiet",
    "version",
    "help",
)
