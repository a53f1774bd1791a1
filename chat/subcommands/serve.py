"""`swiftchat serve`: keep a model loaded for other terminals and HTTP clients."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from swiftchat.chat.options.chat_options import options_of
from swiftchat.chat.options.completion import complete_models
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
    allow_remote: bool,
    max_models: int | None,
    **options: Any,
) -> None:
    """Keep MODEL loaded until Ctrl-C; chats with the same options use it instead of loading it.

    With -d the engine stays in the background until swiftchat stop, as chats leave it with
    --keep-alive. With --keep-alive it ends when it is not used for this time.

    With --openai, HTTP clients of OpenAI's and Anthropic's APIs can use the model too. They must
    send the token that is printed at the start, or that of --token-file or SWIFTCHAT_API_TOKEN.
    Without MODEL they can use every installed model, which is loaded when it is first asked for.
    """
    from swiftchat.chat.model.draft import with_draft
    from swiftchat.chat.model.find import find_model
    from swiftchat.chat.options.config import ChatConfig

    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C, a normal end
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    if openai is None and (token_file is not None or allow_remote):
        raise UsageError("--token-file and --allow-remote belong to --openai", "add --openai")
    if openai is not None and detach:
        raise UsageError("--openai needs the program in the foreground", "leave out -d")
    config = ChatConfig(model=model, **options)
    config.check()
    # The default model of the configuration file names none here.
    is_named = model is not None and ctx.get_parameter_source("model") is not _FROM_FILE
    serves_all = openai is not None and not (is_named or config.dummy or config.draft)
    if max_models is not None and not serves_all:
        raise UsageError("--max-models is for all installed models", "--openai, without MODEL")
    try:
        with contextlib.ExitStack() as stack:
            endpoint = None
            if openai is not None:
                endpoint = _endpoint(openai, token_file, allow_remote)
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


def _endpoint(address: str, token_file: str | None, allow_remote: bool) -> "EndpointServer":
    """Return the HTTP server, listening; raises `UsageError` if its packages are missing."""
    try:
        from swiftchat.chat.endpoint.server import EndpointServer
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("swiftchat"):
            raise
        raise UsageError(
            f"--openai needs the package {error.name}, which is not installed",
            "pip install 'swiftchat[serve]'",
        ) from error
    from swiftchat.chat.endpoint.token import find_token

    return EndpointServer(address, find_token(token_file, os.environ), allow_remote)


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
    from swiftchat.chat.model.chat_model import ChatModel
    from swiftchat.engine.api.client import EngineClient

    return ChatModel(
        path, config, lambda options, at: EngineClient(options, at, serve=serve).start()
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
