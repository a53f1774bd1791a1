"""`swiftchat serve`: keep a model loaded for other terminals and HTTP clients."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from swiftchat.chat.options.chat_options import options_of
from swiftchat.chat.options.completion import complete_models
from swiftchat.chat.options.extras import needing_extra
from swiftchat.chat.options.option_types import UserPath, Whole
from swiftchat.chat.terminal.amounts import format_duration
from swiftchat.chat.terminal.output import print_notice
from swiftchat.chat.terminal.status_line import StatusLine
from swiftchat.errors import DeviceError, EngineStopped, UsageError

if TYPE_CHECKING:
    from swiftchat.chat.endpoint.server import EndpointServer
    from swiftchat.chat.model.chat_model import ChatModel
    from swiftchat.chat.options.config import ChatConfig
    from swiftchat.engine.api.serve_config import ServeConfig

_MAX_MODELS = 64
_FROM_FILE = click.core.ParameterSource.DEFAULT_MAP
_MODEL = click.Argument(
    ["model"], required=False, envvar="SWIFTCHAT_MODEL", shell_complete=complete_models
)


@click.command(params=[_MODEL, *options_of("serve")])
@click.option("-d", "--detach", is_flag=True, help="Leave the engine in the background.")
@click.option("--openai", metavar="HOST:PORT", help="Also serve an OpenAI-compatible HTTP API.")
@click.option(
    "--token-file",
    type=UserPath(),
    help="File with the token that HTTP clients must send.",
)
@click.option(
    "--no-auth",
    is_flag=True,
    help="Let all programs on this machine use --openai, without a token.",
)
@click.option(
    "--cors",
    multiple=True,
    metavar="ORIGIN",
    help="Let pages of this origin use --openai from a browser (repeatable); * is every origin.",
)
@click.option("--allow-remote", is_flag=True, help="Allow --openai to listen for other machines.")
@click.option(
    "--max-models",
    type=Whole(1, _MAX_MODELS),
    metavar="N",
    help="Load at most so many models at once; default: as many as memory holds.",
)
@click.pass_context
def serve(
    ctx: click.Context,
    /,
    model: str | None,
    detach: bool,
    openai: str | None,
    token_file: str | None,
    no_auth: bool,
    cors: tuple[str, ...],
    allow_remote: bool,
    max_models: int | None,
    **options: Any,
) -> None:
    """Keep MODEL loaded until Ctrl-C; chats with the same options use it instead of loading it.

    With -d the engine stays in the background until swiftchat stop, as chats leave it with
    --keep-alive. With --keep-alive it ends when it is not used for this time.

    With --openai, HTTP clients of OpenAI's and Anthropic's APIs can use the model too. They must
    send the token that is printed at the start, or that of --token-file or SWIFTCHAT_API_TOKEN,
    unless --no-auth lets all programs on this machine use it. Without MODEL they can use every
    installed model, which is loaded when it is first asked for.
    """
    from swiftchat.chat.model.draft import with_draft
    from swiftchat.chat.model.find import find_model
    from swiftchat.chat.options.config import ChatConfig

    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C, a normal end
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    if openai is None and (token_file is not None or allow_remote or no_auth or cors):
        names = "--token-file, --no-auth, --cors and --allow-remote"
        raise UsageError(f"{names} belong to --openai", "add --openai")
    if no_auth and (token_file is not None or allow_remote):
        other = "--allow-remote" if allow_remote else "--token-file"
        raise UsageError(f"--no-auth cannot be combined with {other}", "leave out one of them")
    if openai is not None and detach:
        raise UsageError("--openai needs the program in the foreground", "leave out -d")
    config = ChatConfig(model=model, **options)
    config.check()
    # The default model of the configuration file names none here.
    is_named = model is not None and ctx.get_parameter_source("model") is not _FROM_FILE
    serves_all = openai is not None and not (is_named or config.dummy or config.draft)
    if config.lora and (openai is None or serves_all):
        if ctx.get_parameter_source("lora") is click.core.ParameterSource.COMMANDLINE:
            raise UsageError("--lora is for the clients of one model", "--openai, with MODEL")
        config = replace(config, lora=())  # of the configuration, for chats
    if max_models is not None and not serves_all:
        raise UsageError("--max-models is for all installed models", "--openai, without MODEL")
    try:
        with contextlib.ExitStack() as stack:
            endpoint = None
            if openai is not None:
                endpoint = _endpoint(openai, token_file, no_auth, allow_remote, cors)
                stack.enter_context(endpoint)
                if serves_all:
                    _serve_installed(endpoint, config, max_models)
                    return
            path = find_model(config.model, offline=config.offline, quiet=config.quiet)
            config = with_draft(config, path)
            url = endpoint.url if endpoint else None
            serve = _serve_config(path, config, endpoint=url, stays=detach)
            if detach:
                stack.enter_context(_ending_if_interrupted(serve))
            chat_model = stack.enter_context(_started(path, config, serve))
            if detach:
                _load(chat_model, "swiftchat stop")
            else:
                _run(chat_model, endpoint)
    except EngineStopped as error:
        print_notice(error.message)
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            print_notice("")  # the terminal shows ^C at the beginning of the line
        print_notice("the engine has ended")


def _endpoint(
    address: str,
    token_file: str | None,
    no_auth: bool,
    allow_remote: bool,
    origins: tuple[str, ...],
) -> "EndpointServer":
    """Return the HTTP server, listening; raises `UsageError` if its packages are missing."""
    with needing_extra("--openai"):
        from swiftchat.chat.endpoint.server import EndpointServer
    from swiftchat.chat.endpoint.token import find_token

    token = None if no_auth else find_token(token_file, os.environ)
    return EndpointServer(address, token, allow_remote, origins)


def _serve_installed(
    endpoint: "EndpointServer", config: "ChatConfig", max_models: int | None
) -> None:
    """Serve all installed models; raises `KeyboardInterrupt` on a signal."""
    from swiftchat.chat.endpoint.installed_models import InstalledModels
    from swiftchat.weights.store import default_store

    models = InstalledModels(default_store(), config, max_models, endpoint.url)
    with contextlib.closing(models):
        if not config.quiet:
            print_notice(f"installed models: {len(models.names())} · each is loaded on demand")
            print_notice("Ctrl-C ends the server and its engines")
        endpoint.run(models)


def _serve_config(path: Path, config: "ChatConfig", **how: Any) -> "ServeConfig":
    """Choose the socket; raises `DeviceError` if an engine with the same options has it."""
    from swiftchat.engine.api.attach import running_engines, serve_config
    from swiftchat.engine.api.runtime_folder import RuntimeFolder

    found = serve_config(config.engine(), path, keep_alive_s=config.keep_alive, **how)
    for engine in running_engines(RuntimeFolder()):
        if str(engine.socket) == found.socket:
            process = f" (process {engine.status.pid})" if engine.status else ""
            raise DeviceError(
                f"an engine with this model and these options is already running{process}",
                "chats with this model use it; swiftchat stop ends it, swiftchat ps lists all",
            )
    return found


def _started(path: Path, config: "ChatConfig", serve: "ServeConfig") -> "ChatModel":
    from swiftchat.chat.model.adapters import open_adapters
    from swiftchat.chat.model.chat_model import ChatModel
    from swiftchat.engine.api.client import EngineClient

    adapters = open_adapters(config, path)  # first: a wrong one is found before loading
    if adapters is not None:
        adapters.off()  # requests name those that they use
    return ChatModel(
        *(path, config, lambda options, at: EngineClient(options, at, serve=serve).start()),
        adapters,
    )


def _load(chat_model: "ChatModel", end: str) -> None:
    """Wait until the engine is ready, and say so; `end` is what ends it."""
    config = chat_model.config
    status = StatusLine(may_erase=True, is_quiet=config.quiet)
    with status.waiting("starting the engine"):
        # An engine that has ended, as swiftchat stop ends it, is not started again.
        info = chat_model.wait_loaded(status.show_progress)
    if not config.quiet:
        print_notice(f"{chat_model.name} is ready · {info.device} · {info.ctx_size_tokens} tokens")
        if config.keep_alive is not None:
            unused = format_duration(config.keep_alive)
            print_notice(f"it ends when it is not used for {unused}")
        print_notice(f"chats with the same model and options use it · {end} ends it")


@contextlib.contextmanager
def _ending_if_interrupted(serve: "ServeConfig") -> Iterator[None]:
    """End an engine that would stay, if Ctrl-C interrupts what follows."""
    from swiftchat.engine.api.attach import connect
    from swiftchat.engine.api.runtime_folder import RuntimeFolder

    try:
        yield
    except KeyboardInterrupt:
        with contextlib.closing(connect(Path(serve.socket), RuntimeFolder())) as connection:
            connection.stop()
        raise


def _run(chat_model: "ChatModel", endpoint: "EndpointServer | None") -> None:
    """Run until the engine ends; raises the reason."""
    _load(chat_model, "Ctrl-C")
    if endpoint is not None:
        from swiftchat.chat.endpoint.served_models import OneModel

        endpoint.run(OneModel(chat_model))
    reason = chat_model.engine.wait_ended()
    if reason is not None:
        raise reason
