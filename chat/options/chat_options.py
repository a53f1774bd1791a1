"""The options of `swiftchat` and `swiftchat chat`, by the sections of `--help`."""

from collections.abc import Mapping
from typing import Any

import click

from swiftchat.chat.options.answer_options import ANSWER
from swiftchat.chat.options.completion import (
    complete_files,
    complete_models,
    complete_roles,
    complete_sessions,
    complete_shapes,
    complete_templates,
    complete_variables,
)
from swiftchat.chat.options.config import SESSION_OPTIONS
from swiftchat.chat.options.option_types import (
    MAX_RANKS,
    Colors,
    ModelOption,
    RankCount,
    TextsOption,
    UserPath,
    Whole,
    flag,
    once,
    option,
    parameter,
)
from swiftchat.chat.options.parameters import option_name
from swiftchat.chat.options.size import Size
from swiftchat.errors import UsageError

_INPUT = (
    ModelOption(
        ("-m", "--model"),
        envvar="SWIFTCHAT_MODEL",
        help="Name, directory or .gguf file; twice: both answer.",
        shell_complete=complete_models,
    ),
    TextsOption(
        ("--lora",),
        envvar="SWIFTCHAT_LORA",
        multiple=True,
        metavar="DIR[=SCALE]",
        shell_complete=complete_files,
        help="Use a LoRA adapter (repeatable); see swiftchat help adapters.",
    ),
    once(
        "--soft-prompt",
        type=UserPath(),
        metavar="DIR",
        shell_complete=complete_files,
        help="Put a soft prompt before the prompt: prefix, prompt or p-tuning.",
    ),
    once("-p", "--prompt", env=False, help="Answer this prompt and exit; - reads stdin."),
    flag("-i", "--interactive", env=False, help="Continue interactively after -p."),
    option(
        "-f",
        "--file",
        env=False,
        multiple=True,
        metavar="FILE|URL",
        shell_complete=complete_files,
        help="Put a file or page before the prompt (repeatable).",
    ),
    once("-s", "--system", help="System prompt."),
    once("--system-file", type=UserPath(), help="Read the system prompt from a file."),
    once(
        "--role",
        env=False,
        metavar="NAME",
        shell_complete=complete_roles,
        help="System prompt and options of a role; see swiftchat help roles.",
    ),
    option(
        "-v",
        "--var",
        "variables",
        env=False,
        multiple=True,
        metavar="NAME=VALUE",
        shell_complete=complete_variables,
        help="Value of a variable of the role (repeatable).",
    ),
    flag("--no-template", env=False, help="Complete the prompt as plain text."),
    once(
        "--template",
        metavar="NAME|FILE",
        shell_complete=complete_templates,
        help="Chat template: one of the model's, a built-in one (chatml, llama-2 …), a file.",
    ),
    option(
        "--think",
        type=click.Choice(["auto", "on", "off", "low", "medium", "high", "max"]),
        default="auto",
        help="Let the model think first, or how long: what its template can set.",
    ),
)
_CONVERSATIONS = (
    flag("-c", "--continue", "continue_", env=False, help="Continue the last conversation."),
    once(
        "--session",
        env=False,
        metavar="ID|NAME",
        help="Continue this conversation.",
        shell_complete=complete_sessions,
    ),
    flag("--no-save", help="Do not save this conversation."),
    parameter("overflow"),
    parameter("overflow_keep"),
)
_TOOLS = (
    option(
        "--mcp",
        env=False,
        multiple=True,
        metavar="COMMAND|FILE|URL",
        help="Give the model the tools of this MCP server (repeatable); see swiftchat help tools.",
    ),
    option(
        "--allow-tool",
        env=False,
        multiple=True,
        metavar="NAME|all",
        help="Call this tool without asking (repeatable).",
    ),
    option(
        "--max-tool-rounds",
        type=Whole(1, 100),
        default=8,
        metavar="N",
        help="How often the model may call tools for one answer.",
    ),
)
_FORMAT = (
    once(
        "--schema",
        env=False,
        metavar="FILE|JSON",
        shell_complete=complete_files,
        help="Answer with JSON that matches this JSON schema.",
    ),
    flag("--json-object", env=False, help="Answer with a JSON object."),
    once("--regex", env=False, metavar="REGEX", help="Answer with text that matches this."),
    once(
        "--grammar",
        env=False,
        type=UserPath(),
        metavar="FILE",
        shell_complete=complete_files,
        help="Answer with text of this grammar (Lark or GBNF).",
    ),
    flag("--no-schema-prompt", env=False, help="Do not show the schema to the model."),
)
_OUTPUT = (
    flag("--json", env=False, help="Print one JSON object instead of text."),
    flag("--stream-json", env=False, help="Print JSON lines while the answer is generated."),
    flag("-x", "--extract", env=False, help="Print only the answer's code blocks."),
    flag("--raw", help="Print the model's text as is: no Markdown, reasoning included."),
    option(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        help="always renders and colors even into a pipe.",
    ),
    option(
        "--theme",
        type=click.Choice(["auto", "dark", "light", "none"]),
        default="auto",
        help="Colors for this background; auto asks the terminal.",
    ),
    option(
        "--colors",
        type=Colors(),
        help="Colors of parts of an answer, as code=blue,keyword=bold red.",
    ),
    flag("--accessible", help="For screen readers: no redrawing, speaker labels."),
    option(
        "--editing-mode",
        type=click.Choice(["emacs", "vi"]),
        default="emacs",
        help="Keys of the input line.",
    ),
    flag("--stats", help="Print speed and token counts on stderr."),
    flag("-q", "--quiet", help="No banner, no progress."),
    flag("--debug", help="Print tracebacks; with -p also the time of each phase of the start."),
)
# What the engine's process gets, see `ChatConfig.engine`; a running engine has its own.
_ENGINE = (
    option(
        "--draft",
        metavar="MODEL",
        shell_complete=complete_models,
        help="Small model with the same vocabulary, or heads, that propose tokens.",
    ),
    parameter("ctx_size"),
    option("--device", default="auto", help="auto, cpu, cuda or cuda:N."),
    option(
        "--tp",
        type=RankCount(),
        default=1,
        help="Tensor parallelism over N GPUs; auto: as few as the model needs.",
    ),
    option(
        "--pp",
        type=Whole(1, MAX_RANKS),
        default=1,
        metavar="N",
        help="Pipeline parallelism: N stages of --tp GPUs each, for GPUs with slow links.",
    ),
    option(
        "--dtype",
        type=click.Choice(["bfloat16", "float16", "float32"]),
        help="Compute type; default: the type of the weights.",
    ),
    option(
        "--kv-dtype",
        type=click.Choice(["auto", "int8", "fp8", "int5"]),
        default="auto",
        help="KV cache type: 8 bits allow twice the context, int5 nearly three times.",
    ),
    option(
        "--cache-max-bytes",
        type=Size(),
        help="Maximum size of the KV cache on disk; 0: none; default: 8GiB or 5 % of the disk,"
        " whichever is less.",
    ),
    option(
        "--swap-size",
        type=Size(),
        default=0,
        help="Main memory for KV blocks that a GPU has no room for; default: 0.",
    ),
    parameter("threads"),
    option(
        "--dummy",
        env=False,
        metavar="NAME|CONFIG.JSON",
        shell_complete=complete_shapes,
        help="Random weights in this shape; only the tokenizer of the model is used.",
    ),
)
_CONNECTION = (
    option(
        "--connect",
        metavar="HOST:PORT|PATH",
        help="Use a running engine; see swiftchat help hosts.",
    ),
    option("--token-file", type=UserPath(), help="File with the token of that engine."),
    flag("--no-attach", help="Load the model even if swiftchat serve has it."),
    flag("--offline", help="Never use the network."),
)

SECTIONS: dict[str, tuple[click.Option, ...]] = {
    "Input": _INPUT,
    "Conversations": _CONVERSATIONS,
    "Answer": ANSWER,
    "Tools": _TOOLS,
    "Format": _FORMAT,
    "Output": _OUTPUT,
    "Machine": (*_ENGINE, *_CONNECTION),
}
ENGINE_NAMES = tuple(option.name for option in _ENGINE if option.name)
CHAT_OPTIONS = [option for options in SECTIONS.values() for option in options]
# The options that have a variable; roles may set them too.
CONFIG_NAMES = {option.name for option in CHAT_OPTIONS if option.name and option.envvar}
# The options that the configuration file may set: also lists, which a variable could not separate.
FILE_NAMES = CONFIG_NAMES | {"mcp", "allow_tool"}


def typed(settings: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """Return the values of options in their types.

    Raises `UsageError` for an invalid value, which begins with `place`.
    """
    return {name: _typed(name, value, place) for name, value in settings.items()}


def saved_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the options that a conversation sets, in their types, and what is wrong with others.

    An imported conversation may come from another person: it sets only options that are saved with
    a conversation. Conversations of older versions have other names.
    """
    found, problems = {}, []
    for old_name, value in settings.items():
        name = option_name(old_name)
        if name not in SESSION_OPTIONS:
            continue
        try:
            found[name] = _typed(name, value, "")
        except UsageError as error:
            problems.append(error.message)
    return found, problems


_VALUE_HINT = "swiftchat chat --help explains the options"
_BY_NAME = {option.name: option for option in CHAT_OPTIONS}


def _typed(name: str, value: object, place: str) -> Any:
    try:
        return _BY_NAME[name].type_cast_value(click.Context(click.Command("swiftchat")), value)
    except click.BadParameter as error:
        raise UsageError(f"{place}{name}: {error.message}", _VALUE_HINT) from None


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
