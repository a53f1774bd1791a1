"""The command line: options, subcommands, and errors turned into text and exit codes.

Only click is imported here: `swiftchat --help` and completion must be instant.
"""

import contextlib
import gc
import importlib
import io
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from swiftchat.chat.options.completion import (
    COMPLETE_VARIABLE,
    complete_models,
    complete_roles,
    complete_sessions,
    complete_shapes,
    complete_templates,
)
from swiftchat.chat.options.help_layout import ChatCommand, write_everyday_options
from swiftchat.chat.options.num_ranks import RankCount
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.errors import SwiftchatError, UsageError

if TYPE_CHECKING:
    from swiftchat.chat.history.autosave import Autosave
    from swiftchat.chat.history.conversation import Conversation
    from swiftchat.chat.oneshot import OneShot
    from swiftchat.chat.options.config import ChatConfig

F = TypeVar("F", bound=Callable[..., Any])

# name → (module, attribute, short help); aliases have no help and stay out of the list.
_COMMANDS: dict[str, tuple[str, str, str]] = {
    "chat": ("cli", "chat", "Talk to a model (what swiftchat alone does)."),
    "download": ("subcommands.models", "download", "Download a model."),
    "pull": ("subcommands.models", "download", ""),
    "convert": ("subcommands.convert", "convert", "Convert GGUF to a Hugging Face directory."),
    "list": ("subcommands.models", "list_models", "List the models on this machine."),
    "ls": ("subcommands.models", "list_models", ""),
    "show": ("subcommands.models", "show", "Show what a model is and needs."),
    "rm": ("subcommands.models", "rm", "Remove a model."),
    "sessions": ("subcommands.sessions", "sessions", "List, search, export, import conversations."),
    "tokens": ("subcommands.tokens", "tokens", "Count the tokens of a text."),
    "bench": ("subcommands.bench.command", "bench", "Measure a model's speed."),
    "doctor": ("subcommands.doctor", "doctor", "Look what a GPU needs, and what is here."),
    "config": ("subcommands.config", "config", "Show the configuration and where it is."),
    "completion": ("subcommands.completion", "completion", "Print shell completion."),
    "help": (
        "subcommands.help.command",
        "help_command",
        "Show a help page or the help of a command.",
    ),
}

_MORE = "All options: swiftchat chat --help. Pages by topic: swiftchat help."


class Commands(click.Group):
    """Subcommands imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, attribute, _ = _COMMANDS[cmd_name]
        command: click.Command = getattr(
            importlib.import_module(f"swiftchat.chat.{module}"), attribute
        )
        return command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_everyday_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not (args[0] in _COMMANDS or args[0].startswith("-") or ctx.resilient_parsing):
            import difflib

            near = difflib.get_close_matches(args[0], _COMMANDS, n=1)
            ask = f'swiftchat -p "{args[0]} …" asks a model'
            raise UsageError(
                f"there is no command {args[0]!r}", f"swiftchat {near[0]}" if near else ask
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in _COMMANDS.items() if text])


def _option(*names: str, env: bool = True, **settings: Any) -> Callable[[F], F]:
    """An option with its SWIFTCHAT_* variable, the same for `swiftchat` and `swiftchat chat`."""
    long_name = next(name for name in names if name.startswith("--"))
    variable = "SWIFTCHAT_" + long_name.removeprefix("--").replace("-", "_").upper()
    return click.option(*names, envvar=variable if env else None, **settings)


_CHAT_OPTIONS = (
    _option(
        "-m",
        "--model",
        help="Name, OWNER/NAME, directory or .gguf file.",
        shell_complete=complete_models,
    ),
    _option("-p", "--prompt", env=False, help="Answer this once and leave; - reads stdin."),
    _option("-i", "--interactive", env=False, is_flag=True, help="Go on talking after -p."),
    _option("-s", "--system", help="System prompt."),
    _option("--system-file", type=click.Path(), help="System prompt from a file."),
    _option(
        "-f",
        "--file",
        env=False,
        multiple=True,
        type=click.Path(),
        help="Put a file before the prompt (repeatable).",
    ),
    _option(
        "-c",
        "--continue",
        "continue_",
        env=False,
        is_flag=True,
        help="Go on with the last conversation.",
    ),
    _option(
        "--session",
        env=False,
        metavar="ID|NAME",
        help="Go on with this conversation.",
        shell_complete=complete_sessions,
    ),
    _option("--no-save", is_flag=True, help="Do not keep this conversation."),
    _option(
        "--role",
        env=False,
        metavar="NAME",
        shell_complete=complete_roles,
        help="System prompt and options from roles/NAME.md in the configuration folder.",
    ),
    _option("--no-template", env=False, is_flag=True, help="Complete the prompt as it stands."),
    _option(
        "--template",
        metavar="NAME|FILE",
        shell_complete=complete_templates,
        help="Chat template: one of the model's, a built-in one (chatml, llama-2 …), a file.",
    ),
    _option("-n", "--max-tokens", type=int, help="Longest answer."),
    _option("--ctx-size", type=int, help="Context in tokens; default: the model's, if it fits."),
    _option("--temp", type=float, help="Temperature; 0 is greedy."),
    _option("--top-k", type=int, help="Only the k likeliest; 0 is off."),
    _option("--top-p", type=float, help="Only the likeliest that sum to p; 1 is off."),
    _option("--min-p", type=float, help="Only those p times as likely as the first; 0 is off."),
    _option("--repeat-penalty", type=float, help="Above 1 discourages what was said; 1 is off."),
    _option("--presence-penalty", type=float, help="Subtracted once from what was said."),
    _option("--frequency-penalty", type=float, help="Subtracted for each time it was said."),
    _option("--seed", type=int, help="Makes an answer repeatable."),
    _option("--stop", env=False, multiple=True, help="End before this text (repeatable)."),
    _option(
        "--think",
        type=click.Choice(["auto", "on", "off"]),
        default="auto",
        help="Whether the model thinks first, if its template asks.",
    ),
    _option(
        "--overflow",
        type=click.Choice(["error", "drop-oldest"]),
        default="error",
        help="What to do when the context is full.",
    ),
    _option(
        "--logprobs",
        env=False,
        type=int,
        is_flag=False,
        flag_value=5,
        metavar="[K]",
        help="How likely each token was, and the K likeliest (5) in its place.",
    ),
    _option("--device", default="auto", help="auto, cpu, cuda or cuda:N."),
    _option(
        "--tp",
        type=RankCount(),
        default=1,
        help="Divide the model among so many GPUs; auto: the fewest that hold it.",
    ),
    _option(
        "--pp",
        type=click.IntRange(1),
        default=1,
        metavar="N",
        help="Give the layers to N stages of --tp GPUs each, for GPUs with slow links.",
    ),
    _option(
        "--dtype",
        type=click.Choice(["bfloat16", "float16", "float32"]),
        help="Compute in this; default: the weights' own.",
    ),
    _option(
        "--kv-dtype",
        type=click.Choice(["auto", "int8", "fp8"]),
        default="auto",
        help="Keep keys and values in this: 8 bits are room for twice the context.",
    ),
    _option("--threads", type=int, help="CPU threads."),
    _option(
        "--dummy",
        env=False,
        metavar="NAME|CONFIG.JSON",
        shell_complete=complete_shapes,
        help="Random weights in this shape; of the model only the tokenizer is used.",
    ),
    _option(
        "--connect",
        metavar="HOST:PORT|PATH",
        help="Talk through an engine that runs already; see swiftchat help hosts.",
    ),
    _option("--token-file", type=click.Path(), help="That engine's token."),
    _option("--offline", is_flag=True, help="Never use the network."),
    _option("--json", env=False, is_flag=True, help="One JSON object instead of text."),
    _option("--stream-json", env=False, is_flag=True, help="JSON lines as the answer comes."),
    _option("-x", "--extract", env=False, is_flag=True, help="Only the answer's code blocks."),
    _option("--raw", is_flag=True, help="The model's own text: no Markdown, reasoning in place."),
    _option(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        help="always renders and colors even into a pipe.",
    ),
    _option("--accessible", is_flag=True, help="For screen readers: nothing is drawn over."),
    _option(
        "--editing-mode",
        type=click.Choice(["emacs", "vi"]),
        default="emacs",
        help="Keys of the input line.",
    ),
    _option("--stats", is_flag=True, help="Speed and token counts on stderr."),
    _option("-q", "--quiet", is_flag=True, help="No banner, no progress."),
    _option("--debug", is_flag=True, help="Tracebacks."),
)


def chat_options(command: F) -> F:
    for option in reversed(_CHAT_OPTIONS):
        command = option(command)
    return command


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_MORE,
)
@chat_options
@click.version_option(package_name="swiftchat", message="%(prog)s %(version)s")
@click.pass_context
def swiftchat(ctx: click.Context, /, **options: Any) -> None:
    """Talk to open-weights language models on your own machine."""
    if ctx.invoked_subcommand is None:
        ctx.exit(run_chat(ctx, options))
    if ctx.invoked_subcommand not in ("chat", "config", "help"):
        for param in ctx.command.params:
            if param.name != "debug" and _is_given(ctx, param.name):
                raise click.UsageError(
                    f"{param.opts[-1]} does not go with {ctx.invoked_subcommand}"
                )


@click.command(cls=ChatCommand)
@chat_options
@click.pass_context
def chat(ctx: click.Context, /, **options: Any) -> None:
    """Talk to a model: interactively, or once with -p."""
    root = ctx.find_root()
    for name in options:  # `swiftchat -m X chat` means `swiftchat chat -m X`
        if _is_given(root, name) and not _is_given(ctx, name):
            options[name] = root.params[name]
    ctx.exit(run_chat(ctx, options))


def _is_given(ctx: click.Context, name: str | None) -> bool:
    """Whether an option stands on the command line."""
    source = ctx.get_parameter_source(name) if name else None
    return source is click.core.ParameterSource.COMMANDLINE


def run_chat(ctx: click.Context, options: dict[str, Any]) -> int:
    """Answer once or open the conversation; the exit code."""
    from swiftchat.chat.options.config import ChatConfig
    from swiftchat.chat.start import autosave_for, check_connect, conversation_for

    check_connect(ctx, options)
    ChatConfig(**options).check()
    with contextlib.closing(autosave_for(options)) as autosave:
        conversation = conversation_for(ctx, options, option_names())
        config = ChatConfig(**options)
        config.check()
        conversation.system = config.system_text()
        return _answer_or_talk(config, conversation, autosave)


def _answer_or_talk(
    config: "ChatConfig", conversation: "Conversation", autosave: "Autosave"
) -> int:
    as_json = config.json or config.stream_json
    at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if config.interactive and (as_json or config.no_template or not at_terminal):
        raise UsageError(
            "-i needs a terminal and goes with neither JSON nor --no-template", "leave -i out"
        )
    asks_once = config.prompt is not None or as_json or config.no_template or config.extract
    if asks_once or not at_terminal:
        if config.prompt is None and sys.stdin.isatty():
            raise UsageError("this needs a prompt", "give it with -p, or pipe it in")
        has_place = as_json or (sys.stdout.isatty() and not config.extract)
        if config.logprobs is not None and not has_place:
            raise UsageError("--logprobs has no place in a plain answer", "add --json")
        return run_once(config, conversation, autosave)
    from swiftchat.chat.terminal.echo import hide_typing

    with hide_typing():  # some type as soon as they have pressed Enter
        from swiftchat.chat.repl.loop import run_repl

    return run_repl(config, conversation, autosave)


def run_once(config: "ChatConfig", conversation: "Conversation", autosave: "Autosave") -> int:
    from swiftchat.chat.history.conversation import title_of
    from swiftchat.chat.model.chat_model import chat_model_for
    from swiftchat.chat.oneshot import OneShot, prompt_text
    from swiftchat.chat.terminal.echo import hide_typing

    text = prompt_text(config)
    asked = text if config.prompt in (None, "-") else config.prompt
    conversation.title = conversation.title or title_of(asked or text)
    conversation.add("user", text)
    with chat_model_for(config) as chat_model:
        one_shot = OneShot(chat_model, config, autosave)
        if not config.interactive and not (sys.stdin.isatty() and sys.stdout.isatty()):
            return _once(one_shot, conversation)
        with hide_typing(one_shot.pause):
            if not config.interactive:
                return _once(one_shot, conversation)
            # While the engine loads: it takes a tenth of a second.
            from swiftchat.chat.repl.loop import Repl

            one_shot.run(conversation)
        return Repl(chat_model, config, conversation, "", autosave).run()


def _once(one_shot: "OneShot", conversation: "Conversation") -> int:
    try:
        return one_shot.run(conversation)
    finally:
        one_shot.autosave.finish(conversation)


def option_names() -> set[str]:
    """The options that may stand in the configuration file: those with a variable."""
    return {
        param.name
        for param in chat.params
        if param.name and isinstance(param, click.Option) and param.envvar
    }


def main() -> None:
    """The console script: run, and turn every error into one line, a hint and an exit code."""
    if sys.stdout is None:  # closed by who started this: nobody could read the answer
        sys.exit(141)
    _prepare_streams()
    debug = "--debug" in sys.argv
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    code = 1
    try:
        code = _run()
        sys.stdout.flush()
    except click.exceptions.Exit as done:
        code = done.exit_code
    except SwiftchatError as error:
        code = _tell(error.message, error.hint, error.exit_code, debug)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "swiftchat"
        code = _tell(error.format_message(), f"{command} --help", 2, debug=False)
    except (KeyboardInterrupt, click.exceptions.Abort):
        code = 130
    except BrokenPipeError:
        code = 141
    except Exception as error:  # noqa: BLE001  (the last resort: one line instead of a traceback)
        text = f"{type(error).__name__}: {error}"
        code = _tell(f"internal error: {text}", "--debug shows where", 1, debug)
    if code == 141:
        # Python would complain about the closed pipe once more while it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    gc.freeze()  # else Python would look through all there is once more: 20 ms
    sys.exit(code)


def _run() -> int:
    from swiftchat.chat.options.config import load_config_file

    if instruction := os.environ.get(COMPLETE_VARIABLE):
        from click.shell_completion import shell_complete

        return shell_complete(swiftchat, {}, "swiftchat", COMPLETE_VARIABLE, instruction)
    asks_help = {"--help", "-h", "--version"} & set(sys.argv)
    values = {} if asks_help else load_config_file(option_names())
    default_map = {**values, "chat": values, "tokens": values}
    # Not click's own `main`: it would turn a closed pipe into exit status 1.
    with swiftchat.make_context("swiftchat", sys.argv[1:], default_map=default_map) as ctx:
        swiftchat.invoke(ctx)
    return 0


def _prepare_streams() -> None:
    """Replace what an ASCII or Latin-1 terminal cannot show, and streams that are closed.

    A closed descriptor 0 or 2 would otherwise be given to the next file that is opened.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115, PTH123  (for as long as the process lives)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _tell(message: str, hint: str, code: int, debug: bool) -> int:
    if debug:
        import traceback

        traceback.print_exc()
    with contextlib.suppress(OSError, ValueError):  # nobody may be reading stderr
        print(f"error: {sanitize(' '.join(message.split()))}", file=sys.stderr)
        print(f"hint: {sanitize(' '.join(hint.split()))}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
