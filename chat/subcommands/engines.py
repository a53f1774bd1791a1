"""`swiftchat ps` and `swiftchat stop`: the engines that run for this user."""

import contextlib
import json
from dataclasses import asdict

import click

from swiftchat.chat.history.listing import Column, print_table
from swiftchat.chat.terminal.amounts import format_duration
from swiftchat.chat.terminal.output import print_notice
from swiftchat.engine.api.attach import RunningEngine, connect, running_engines
from swiftchat.engine.api.protocol import EngineStatus
from swiftchat.engine.api.runtime_folder import RuntimeFolder
from swiftchat.errors import UsageError

_COLUMNS = (
    Column("NAME", is_shortened=True),
    Column("PID"),
    Column("DEVICE", left_out=3, is_shortened=True),
    Column("MEMORY", left_out=5),
    Column("IDLE", left_out=6),
    Column("ENDS", left_out=4),
    Column("TERMINALS", left_out=1),
    Column("ADDRESS", left_out=2),
)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ps(as_json: bool) -> None:
    """List the engines that swiftchat serve has started or a chat has left with --keep-alive."""
    engines = running_engines(RuntimeFolder())
    if as_json:
        rows = [
            {"socket": str(one.socket), **(asdict(one.status) if one.status else {})}
            for one in engines
        ]
        print(json.dumps(rows, indent=2))
        return
    if not engines:
        print_notice("no engine is running; swiftchat serve starts one")
        return
    print_table(_COLUMNS, map(_row, engines), is_aligned_in_pipes=True)


@click.command()
@click.argument("name", metavar="[NAME|PID]", required=False)
@click.option("--all", "all_engines", is_flag=True, help="End all engines.")
def stop(name: str | None, all_engines: bool) -> None:
    """End a running engine and free its memory.

    Without NAME the only one; a running answer keeps its text so far.
    """
    if name is not None and all_engines:
        raise UsageError("a name and --all were both given", "choose one")
    folder = RuntimeFolder()
    engines = running_engines(folder)
    for engine in engines if all_engines else _chosen(engines, name):
        with contextlib.closing(connect(engine.socket, folder)) as connection:
            connection.stop()
        print_notice(f"stopped {_name(engine)}")


def _chosen(engines: list[RunningEngine], name: str | None) -> list[RunningEngine]:
    """Return the engine of this name or process id; without one the only engine."""
    found = [one for one in engines if name is None or name.lower() in _names(one)]
    if len(found) == 1:
        return found
    if found:
        pids = ", ".join(str(one.status.pid) for one in found if one.status)
        which = f"{len(found)} engines are running" + (f" as {name}" if name else "")
        raise UsageError(which, f"name one by its process id ({pids}), or use --all")
    if engines:
        running = ", ".join(map(_name, engines))
        raise UsageError(f"no engine named {name!r} is running", f"running: {running}")
    raise UsageError("no engine is running", "swiftchat serve starts one")


def _names(engine: RunningEngine) -> tuple[str, ...]:
    status = engine.status
    return (engine.socket.stem, *((status.name.lower(), str(status.pid)) if status else ()))


def _name(engine: RunningEngine) -> str:
    """Return the model's name, or that of the socket of an engine that does not answer."""
    return engine.status.name if engine.status else engine.socket.stem


def _row(engine: RunningEngine) -> tuple[str, ...]:
    from swiftchat.chat.terminal.amounts import format_bytes

    status = engine.status
    if status is None:
        unknown = ("?", "?", "?", "no answer", "?", "?")
        return (engine.socket.stem, *unknown, str(engine.socket))
    memory = format_bytes(status.memory_bytes)
    if not status.device.startswith("cpu"):
        memory += f" + {format_bytes(status.device_bytes)} GPU" if status.device else ""
    idle = format_duration(status.idle_s) if status.idle_s else "computing"
    address = status.endpoint or str(engine.socket)
    cells = (status.name, str(status.pid), status.device.partition(",")[0] or "?", memory)
    state = idle if status.device else "loading"
    return (*cells, state, _end(status), str(status.num_terminals), address)


def _end(status: EngineStatus) -> str:
    """Say when an engine ends by itself."""
    if status.keep_alive_s is None:
        return "when stopped"
    if status.ends_in_s is None:
        return f"{format_duration(status.keep_alive_s)} after use"
    return f"in {format_duration(status.ends_in_s)}"
