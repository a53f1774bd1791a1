"""A one-shot that leaves its engine running, of which a process is killed: itself or the engine."""

import signal
import time
from contextlib import closing
from pathlib import Path
from random import Random

from swiftchat.engine.api.attach import connect, running_engines
from swiftchat.engine.api.runtime_folder import RuntimeFolder
from tests.kills.commands import Run
from tests.kills.outcome import Outcome
from tests.kills.processes import files_in, orphans, send

_LIMIT_S = 120.0
_START_S = 1.5  # about the time from a start to the answer
_MAX_STOPPED_S = 0.3


def kill_leaving(target: str, name: str, random: Random, model: Path, home: Path) -> Outcome:
    """Send the signal `name` to a one-shot or its engine, then answer again and stop the engine."""
    outcome, folder = Outcome(), RuntimeFolder(home / "run/swiftchat")
    arguments = ["-m", str(model), "--dummy", str(model / "config.json"), "--device", "cpu"]
    arguments += ["--threads", "1", "--keep-alive", "10m", "-p", "hello", "-n", "8"]
    run = Run(_main, arguments, home)
    if target == "staying":
        run.look_until(lambda: _engines(folder))
    moment = time.monotonic() + random.uniform(0, _START_S)
    run.look_until(lambda: time.monotonic() >= moment)
    if target == "leaving":
        run.end_by(name, random, outcome)
    else:
        for pid in _engines(folder):
            _signal(pid, name, random)
        outcome.exit_code = run.wait()
        if outcome.exit_code not in (0, 4):
            outcome.failures.append(f"exit code {outcome.exit_code}:\n{run.terminal.look()}")
    again = Run(_main, arguments, home)
    if again.wait():
        outcome.failures.append(f"the next run failed:\n{again.terminal.look()}")
    outcome.num_completed = len(_engines(folder))
    for engine in running_engines(folder):
        with closing(connect(engine.socket, folder, _LIMIT_S)) as connection:
            connection.stop()
    outcome.orphans = orphans(_LIMIT_S)
    kept = ("data/swiftchat/sessions/sessions.db", "state/swiftchat/errors/")
    outcome.left = sorted(name for name in files_in(home) if not name.startswith(kept))
    return outcome


def _engines(folder: RuntimeFolder) -> list[int]:
    """Return the process ids of the engines that answer."""
    found = running_engines(folder) if folder.path.exists() else []
    return [engine.status.pid for engine in found if engine.status]


def _signal(pid: int, name: str, random: Random) -> None:
    """Send the signal; a stopped engine is continued or killed a little later."""
    send(pid, signal.Signals[name])
    if name == "SIGSTOP":
        time.sleep(random.uniform(0, _MAX_STOPPED_S))
        send(pid, random.choice((signal.SIGCONT, signal.SIGKILL)))


def _main() -> None:
    from swiftchat.chat.cli import main

    main()
