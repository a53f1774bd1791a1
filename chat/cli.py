"""The command line: commands, and errors turned into messages and exit codes.

Only click is imported at the top, so that `swiftchat --help` and completion are instant.
"""

import contextlib
import gc
import importlib
import itertools
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from swiftchat.chat.options.chat_options import CHAT_OPTIONS
from swiftchat.chat.options.completion import COMPLETE_VARIABLE
from swiftchat.chat.options.help_layout import ChatCommand, write_everyday_options
from swiftchat.chat.options.option_types import OnceOption, compared_models, given_twice
from swiftchat.chat.options.table import Options
from swiftchat.chat.options.variables import unread_variables
from swiftchat.chat.render.style import color_notices
from swiftchat.chat.terminal.error_report import print_error, print_lines
from swiftchat.chat.terminal.output import print_notice
from swiftchat.chat.terminal.signals import install_signal_handlers
from swiftchat.chat.terminal.streams import open_streams
from swiftchat.errors import SwiftchatError, UsageError

if TYPE_CHECKING:
    from swiftchat.chat.history.autosave import Autosave
    from swiftchat.chat.history.conversation import Conversation
    from swiftchat.chat.options.config import ChatConfig
    from swiftchat.chat.options.project import Project
    from swiftchat.chat.terminal.keyboard import Keyboard

# name → (module, attribute, short help); aliases have no help and are not listed.
_COMMANDS: dict[str, tuple[str, str, str]] = {
    "chat": ("cli", "chat", "Chat with a model (the default command)."),
    "download": ("subcommands.models", "download", "Download a model (also: pull)."),
    "pull": ("subcommands.models", "download", ""),
    "convert": ("subcommands.convert", "convert", "Convert a model to a Hugging Face directory."),
    "models": ("subcommands.fits", "models", "List the models that fit this machine, best first."),
    "use": ("subcommands.fits", "use", "Choose the default model."),
    "list": ("subcommands.models", "list_models", "List the models on this machine (also: ls)."),
    "ls": ("subcommands.models", "list_models", ""),
    "show": ("subcommands.models", "show", "Show a model's properties and memory needs."),
    "rm": ("subcommands.models", "rm", "Remove a model."),
    "serve": ("subcommands.serve", "serve", "Keep a model loaded for chats and HTTP clients."),
    "ps": ("subcommands.engines", "ps", "List the running engines."),
    "stop": ("subcommands.engines", "stop", "End a running engine."),
    "cache": ("subcommands.cache", "cache", "List or clear the KV caches of conversations."),
    "sessions": ("subcommands.sessions", "sessions", "List, search, export, import conversations."),
    "do": ("subcommands.do", "do", "Propose a shell command, and run it after a y."),
    "tokens": ("subcommands.tokens", "tokens", "Count the tokens of a text."),
    "batch": ("subcommands.batch.command", "batch", "Answer the prompts of a file."),
    "score": ("subcommands.score", "score", "Print the perplexity of a text."),
    "embed": ("subcommands.embed", "embed", "Print the embeddings of texts."),
    "bench": ("subcommands.bench.command", "bench", "Measure a model's speed on this machine."),
    "doctor": ("subcommands.doctor", "doctor", "Check what models can run on: CPU, GPUs."),
    "config": ("subcommands.config", "config", "Show the configuration and its file."),
    "completion": ("subcommands.completion", "completion", "Print a shell completion script."),
    "help": ("subcommands.help.command", "help_command", "Show help on a topic or a command."),
}

_EPILOG = "All options: swiftchat chat --help. Help by topic: swiftchat help."


# `run MODEL [PROMPT]`, as in other programs: the options of the default command.
_RUN = "run"
_RUN_HELP = "Chat with a model, or answer a prompt."


def _as_options(args: list[str]) -> list[str]:
    """Return the arguments of `run` with the model and the prompt as options."""
    _, *rest = args
    words = list(itertools.takewhile(lambda word: not word.startswith("-"), rest))
    if not words:
        raise UsageError("run needs a model", "swiftchat run MODEL; swiftchat list shows them")
    model, *prompt = words
    if len(prompt) > 1:
        hint = f"swiftchat run {shlex.quote(model)} {shlex.quote(' '.join(prompt))}"
        raise UsageError("a prompt of several words needs quotes", hint)
    options = ["-m", model, *(option for text in prompt for option in ("-p", text))]
    return [*options, *rest[1 + len(prompt) :]]


class Commands(click.Group):
    """Subcommands whose modules are imported on use."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _as_options(args) if args[:1] == [_RUN] else args)

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

            words = list(itertools.takewhile(lambda word: not word.startswith("-"), args))
            near = difflib.get_close_matches(words[0], _COMMANDS, n=1)
            hint = f"swiftchat -p {shlex.quote(' '.join(words))} sends it to a model"
            if Path(words[0]).exists():
                hint = f"swiftchat -m {shlex.quote(words[0])} chats with a model"
            elif near and len(words) == 1:
                hint = f"swiftchat {near[0]}"
            elif near:
                hint = f"{hint}; did you mean swiftchat {near[0]}?"
            raise UsageError(f"unknown command {words[0]!r}", hint)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            rows = [(name, text) for name, (_, _, text) in _COMMANDS.items() if text]
            formatter.write_dl([(f"{_RUN} MODEL [PROMPT]", _RUN_HELP), *rows])


@click.group(
    cls=Commands,
    params=list(CHAT_OPTIONS),
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_EPILOG,
)
@click.version_option(package_name="swiftchat", message="%(prog)s %(version)s")
@click.pass_context
def swiftchat(ctx: click.Context, /, **options: Any) -> None:
    """Chat with open-weights language models on your own machine."""
    color_notices(Options(**options), os.environ)
    if ctx.invoked_subcommand is None:
        ctx.exit(run_chat(ctx, options))
    if ctx.invoked_subcommand not in ("chat", "config", "help"):
        for param in ctx.command.params:
            if param.name != "debug" and _is_given(ctx, param.name):
                raise _misplaced(ctx, param)


def _misplaced(ctx: click.Context, param: click.Parameter) -> Exception:
    """Return the error for an option of the chat before another command."""
    name, flag = ctx.invoked_subcommand or "", param.opts[-1]
    command = swiftchat.get_command(ctx, name)
    if command is None or param.name not in {each.name for each in command.params}:
        return click.UsageError(f"{flag} is not an option of {name}")
    hint = f"options follow the command; swiftchat {name} --help lists them"
    return UsageError(f"{flag} stands before {name}, not behind it", hint)


@click.command(cls=ChatCommand, params=list(CHAT_OPTIONS))
@click.pass_context
def chat(ctx: click.Context, /, **options: Any) -> None:
    """Chat with a model: interactively, or once with -p."""
    root = ctx.find_root()
    for param in ctx.command.params:  # `swiftchat -m X chat` means `swiftchat chat -m X`
        name = param.name or ""
        if not _is_given(root, name):
            continue
        if not _is_given(ctx, name):
            options[name] = root.params[name]
        elif type(param) is OnceOption:
            raise given_twice(param)
    color_notices(Options(**options), os.environ)
    ctx.exit(run_chat(ctx, options))


def _is_given(ctx: click.Context, name: str | None) -> bool:
    """Return whether an option was given on the command line."""
    source = ctx.get_parameter_source(name) if name else None
    return source is click.core.ParameterSource.COMMANDLINE


def run_chat(ctx: click.Context, options: dict[str, Any]) -> int:
    """Answer once or start the interactive chat; return the exit code."""
    from swiftchat.chat.options.config import ChatConfig
    from swiftchat.chat.precedence import (
        autosave_for,
        check_connect,
        conversation_for,
        with_first_model,
    )

    options["compared"] = compared_models(ctx)
    check_connect(ctx, options)
    config = ChatConfig(**options)
    config.check()
    # A one-shot goes on with the last answer of any kind, a chat with the last chat.
    with_one_shots = _asks_once(config) or not _is_at_terminal()
    with contextlib.closing(autosave_for(options)) as autosave:
        conversation = conversation_for(ctx, options, with_one_shots=with_one_shots)
        config = ChatConfig(**options)
        config.check()
        if config.has_tools:  # before a model is downloaded
            from swiftchat.chat.turn.model_tools import check_tools

            check_tools(config)
        conversation.system = config.system_text()
        is_oneshot = _is_oneshot(config)
        if not config.quiet:
            for sentence in unread_variables(os.environ, CHAT_OPTIONS):
                print_notice(f"note: {sentence}")
            if ctx.obj is not None:
                _print_project(ctx.obj, is_oneshot)
        if is_oneshot:
            return _run_once(config, conversation, autosave)
        config = with_first_model(config)
        with _open_keyboard() as keyboard:
            # Imported while the user may type already.
            from swiftchat.chat.repl.loop import run_repl

            return run_repl(config, conversation, autosave, keyboard)


def _print_project(project: "Project", is_oneshot: bool) -> None:
    """Print what the project file sets, if the chat is interactive, and what is left out of it."""
    for notice in project.notices:
        print_notice(f"warning: {notice}")
    if project.values and not is_oneshot:
        print_notice(f"{project.path} sets {', '.join(project.values)}")


def _open_keyboard() -> "Keyboard":
    from swiftchat.chat.render.style import is_dumb
    from swiftchat.chat.terminal.keyboard import Keyboard

    return Keyboard(is_dumb(os.environ))


def _is_oneshot(config: "ChatConfig") -> bool:
    """Return whether to answer one prompt; raises `UsageError` for contradictory options."""
    as_json = config.json or config.stream_json
    if config.prompt_logprobs is not None and not as_json:
        raise UsageError("--prompt-logprobs needs JSON", "add --json")
    at_terminal = _is_at_terminal()
    if config.interactive and (as_json or config.no_template or not at_terminal):
        raise UsageError(
            "-i needs a terminal and cannot be combined with JSON or --no-template", "leave out -i"
        )
    if at_terminal and not _asks_once(config):
        if config.samples > 1:
            raise UsageError("--samples is for one prompt", "give it with -p; /regen answers again")
        if config.compared:
            raise UsageError("two models answer one prompt", "give it with -p; or type /compare")
        return False
    if config.prompt is None and not config.opening and sys.stdin.isatty():
        raise UsageError("no prompt was given", "give it with -p, or pipe it in")
    shows_logprobs = as_json or (sys.stdout.isatty() and not config.extract)
    if config.logprobs is not None and not shows_logprobs:
        raise UsageError("--logprobs needs JSON or a terminal", "add --json")
    return True


def _is_at_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _asks_once(config: "ChatConfig") -> bool:
    """Return whether the options ask for one answer, also at a terminal."""
    as_json = config.json or config.stream_json
    return config.prompt is not None or as_json or config.no_template or config.extract


def _run_once(config: "ChatConfig", conversation: "Conversation", autosave: "Autosave") -> int:
    """Answer one prompt, then start the interactive chat with -i; return the exit code."""
    from swiftchat.chat.history.conversation import title_of
    from swiftchat.chat.turn.one_shot import OneShot, prompt_text

    text = prompt_text(config)
    question = config.opening if config.prompt in (None, "-") else config.prompt
    conversation.title = conversation.title or title_of(question or text)
    if not conversation.tree:
        conversation.is_one_shot = not config.interactive
    conversation.add("user", text)
    try:
        if not config.interactive:
            return OneShot(config, conversation, autosave).run()
        with _open_keyboard() as keyboard:
            from swiftchat.chat.repl.loop import run_repl

            return run_repl(config, conversation, autosave, keyboard)
    finally:
        conversation.forget_unanswered()
        autosave.finish(conversation)


def main() -> None:
    """Run the console script: every error becomes a message, a hint and an exit code."""
    if sys.stdout is None:  # a closed descriptor 1: nothing can be printed
        sys.exit(141)
    open_streams()
    color_notices(Options(), os.environ)  # for errors of the command line
    code = _exit_code(_run)
    # Not left to Python, which ends with its own message and status if that fails.
    code = code or _exit_code(sys.stdout.flush)
    gc.freeze()  # skips a final garbage collection of 20 ms
    sys.exit(code)


def _exit_code(run: Callable[[], object]) -> int:
    """Call a function, print its error and return the exit code."""
    debug = "--debug" in sys.argv
    try:
        run()
    except click.exceptions.Exit as done:
        return done.exit_code
    except SwiftchatError as error:
        return print_error(error, debug=debug)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "swiftchat"
        print_lines(error.format_message(), f"{command} --help")
        return UsageError.exit_code
    except (KeyboardInterrupt, click.exceptions.Abort):
        return 130
    except BrokenPipeError:
        return 141
    except Exception as error:  # noqa: BLE001  (the last resort: a message, not a traceback)
        return print_error(error, debug=debug)
    return 0


def _run() -> None:
    install_signal_handlers()
    from swiftchat.chat.options.option_files import load_config_file
    from swiftchat.chat.options.project import current_project

    if instruction := os.environ.get(COMPLETE_VARIABLE):
        from click.shell_completion import shell_complete

        from swiftchat.chat.options.shells import register_shells

        register_shells()
        completed = shell_complete(swiftchat, {}, "swiftchat", COMPLETE_VARIABLE, instruction)
        raise click.exceptions.Exit(completed)
    is_help = {"--help", "-h", "--version"} & set(sys.argv)
    values, project = {}, None
    # A file that cannot be read can be edited.
    if not is_help and sys.argv[1:3] != ["config", "edit"]:
        values, project = load_config_file(), current_project()
        values |= project.values if project else {}
    # `token_file` is that of --connect; serve's option of this name is another. `keep_alive` is for
    # engines that stay behind chats: serve ends when its user says so.
    others = ("token_file", "keep_alive")
    serve = {name: value for name, value in values.items() if name not in others}
    engines = ("chat", "tokens", "score", "embed", "batch", "do")
    commands = {"serve": serve} | dict.fromkeys(engines, values)
    default_map = {**values, **commands}
    # click's own `main` would turn a closed pipe into exit status 1.
    with swiftchat.make_context(
        "swiftchat", sys.argv[1:], default_map=default_map, obj=project
    ) as ctx:
        swiftchat.invoke(ctx)


if __name__ == "__main__":
    main()
