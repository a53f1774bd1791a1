"""`swiftchat serve`: keep a model loaded for other terminals."""

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from swiftchat.chat.options.chat_options import CHAT_OPTIONS
from swiftchat.chat.options.completion import complete_models
from swiftchat.chat.options.duration import Duration, format_duration
from swiftchat.chat.terminal.output import StatusLine, print_notice
from swiftchat.errors import DeviceError, EngineStopped

if TYPE_CHECKING:
    from swiftchat.chat.model.chat_model import ChatModel
    from swiftchat.chat.options.config import ChatConfig
    from swiftchat.engine.api.params import ServeConfig

_ENGINE_OPTIONS = (
    *("ctx_size", "device", "tp", "pp", "dtype", "kv_dtype", "threads", "dummy"),
    *("template", "think", "offline", "quiet"),
)
_MODEL = click.Argument(
    ["model"], required=False, envvar="SWIFTCHAT_MODEL", shell_complete=complete_models
)


@click.command(params=[_MODEL, *(one for one in CHAT_OPTIONS if one.name in _ENGINE_OPTIONS)])
@click.option(
    "--keep-alive",
    type=Duration(),
    envvar="SWIFTCHAT_KEEP_ALIVE",
    help="End after nobody has used the engine for this time: 90s, 10m, 2h.",
)
def serve(
    model: str | None,
    keep_alive: float | None,
    **options: Any,
) -> None:
    """Keep MODEL loaded until Ctrl-C; chats with the same options use it instead of loading it."""
    from swiftchat.chat.model.find import find_model
    from swiftchat.chat.options.config import ChatConfig

    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C, a normal end
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    config = ChatConfig(model=model, **options)
    config.check()
    try:
        with contextlib.ExitStack() as stack:
            path = find_model(config.model, offline=config.offline, quiet=config.quiet)
            serve_config = _serve_config(path, config, keep_alive)
            chat_model = stack.enter_context(_started(path, config, serve_config))
            _run(chat_model, serve_config)
    except EngineStopped as error:
        print_notice(error.message)
    except KeyboardInterrupt:
        print_notice("the engine has ended")


def _serve_config(path: Path, config: "ChatConfig", keep_alive: float | None) -> "ServeConfig":
    """Choose the socket; raises `DeviceError` if an engine with the same options has it."""
    from swiftchat.engine.api.attach import running_engines
    from swiftchat.engine.api.engine_key import engine_key
    from swiftchat.engine.api.params import ServeConfig
    from swiftchat.engine.api.runtime_folder import RuntimeFolder

    folder = RuntimeFolder()
    folder.create()
    socket = folder.socket(engine_key(path, config.engine(), os.environ))
    for engine in running_engines(folder):
        if engine.socket == socket:
            process = f" (process {engine.status.pid})" if engine.status else ""
            raise DeviceError(
                f"an engine with this model and these options is already running{process}",
                "swiftchat uses it by itself; swiftchat stop ends it, swiftchat ps lists all",
            )
    return ServeConfig(str(socket), path.name, keep_alive)


def _started(path: Path, config: "ChatConfig", serve_config: "ServeConfig") -> "ChatModel":
    from swiftchat.chat.model.chat_model import ChatModel
    from swiftchat.engine.api.client import EngineClient

    return ChatModel(
        path, config, lambda options, at: EngineClient(options, at, serve=serve_config).start()
    )


def _run(chat_model: "ChatModel", serve_config: "ServeConfig") -> None:
    """Run until the engine ends; raises the reason."""
    status = StatusLine(not chat_model.config.quiet)
    info = chat_model.wait_ready(lambda at: status.show(at.label, at.done, at.total))
    status.clear()
    print_notice(f"{chat_model.name} is ready · {info.device} · {info.ctx_size_tokens} tokens")
    if serve_config.keep_alive_s is not None:
        print_notice(
            f"it ends when nobody uses it for {format_duration(serve_config.keep_alive_s)}"
        )
    print_notice("chats with the same model and options use it · Ctrl-C ends it")
    reason = chat_model.engine.wait_ended()
    if reason is not None:
        raise reason
