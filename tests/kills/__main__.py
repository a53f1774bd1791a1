"""Kill the program's processes at random moments: `python -m tests.kills --rounds N`.

For each target and signal N rounds run, each in a process of its own; a table shows what they
found. The exit code is 1 if a round found a problem. Linux only.
"""

import argparse
import ctypes
import json
import multiprocessing
import os
import random
import selectors
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from itertools import product
from pathlib import Path

from tests.support.forks.own import own_forks

own_forks()  # first: it sets the number of threads

from tests.kills import commands, conversation, staying  # noqa: E402
from tests.kills.outcome import SIGNALS, Outcome, table  # noqa: E402

_PR_SET_CHILD_SUBREAPER = 36
Kill = Callable[[str, str, random.Random, Path, Path], Outcome]
# Target → the function that makes what its rounds share, and the one that runs a round.
TARGETS: dict[str, tuple[Callable[[Path], Path], Kill]] = dict.fromkeys(
    ("terminal", "worker", "rank"), (conversation.make_model, conversation.kill_in_conversation)
) | {
    "leaving": (conversation.make_model, staying.kill_leaving),
    "staying": (conversation.make_model, staying.kill_leaving),
    "downloader": (commands.make_nothing, commands.kill_download),
    "quantizing downloader": (commands.make_arriving, commands.kill_arrival),
    "converter": (commands.make_source, commands.kill_conversion),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1, help="of each target and signal")
    parser.add_argument("--target", choices=TARGETS, action="append")
    parser.add_argument("--signal", choices=SIGNALS, action="append")
    parser.add_argument("--jobs", type=int, default=4, help="rounds at the same time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no round later")
    parser.add_argument("--log", type=Path, help="a file that gets one line of JSON for each round")
    arguments = parser.parse_args()
    cases = [
        (target, name, arguments.seed + number)
        for number, name, target in product(
            range(arguments.rounds), arguments.signal or SIGNALS, arguments.target or TARGETS
        )
    ]
    with tempfile.TemporaryDirectory(prefix="swiftchat-kills-") as folder:
        rounds = Rounds(Path(folder), arguments.jobs, arguments.seconds)
        found = []
        for target, name, seed, outcome in rounds.run(cases):
            found.append((target, name, outcome))
            if arguments.log:
                with arguments.log.open("a") as log:
                    log.write(json.dumps([target, name, seed, asdict(outcome)]) + "\n")
            for problem in outcome.problems:
                print(f"{target} {name} --seed {seed}: {problem}", file=sys.stderr, flush=True)
    found.sort(key=lambda one: (list(TARGETS).index(one[0]), SIGNALS.index(one[1])))
    print(table(found))
    return int(any(outcome.problems for _, _, outcome in found))


class Rounds:
    """Runs rounds in forked processes, `jobs` at the same time."""

    def __init__(self, folder: Path, jobs: int, seconds: float) -> None:
        self._folder, self._jobs = folder, jobs
        self._end = time.monotonic() + seconds
        self._selector = selectors.DefaultSelector()
        self._shared: dict[Callable[[Path], Path], Path] = {}

    def run(self, cases: Iterable[tuple[str, str, int]]) -> Iterable[tuple[str, str, int, Outcome]]:
        """Yield each case with its outcome, in the order in which they end."""
        for case in cases:
            if time.monotonic() > self._end:
                break
            while len(self._selector.get_map()) >= self._jobs:
                yield from self._collect()
            self._start(*case)
        while self._selector.get_map():
            yield from self._collect()

    def _start(self, target: str, name: str, seed: int) -> None:
        make, kill = TARGETS[target]
        if make not in self._shared:
            self._shared[make] = _made(make, self._folder / f"shared-{len(self._shared)}")
        home = Path(tempfile.mkdtemp(dir=self._folder))
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                _adopt_orphans()
                outcome = kill(
                    target, name, random.Random(f"{target} {name} {seed}"), self._shared[make], home
                )
            except BaseException:  # noqa: BLE001  (a failed assertion too is reported)
                outcome = Outcome(failures=[traceback.format_exc()])
            os.write(theirs, json.dumps(asdict(outcome)).encode())
            os._exit(0)
        os.close(theirs)
        self._selector.register(ours, selectors.EVENT_READ, (pid, home, target, name, seed))

    def _collect(self) -> Iterable[tuple[str, str, int, Outcome]]:
        for key, _ in self._selector.select():
            pid, home, *case = key.data
            text = os.read(key.fd, 1 << 16)
            self._selector.unregister(key.fd)
            os.close(key.fd)
            os.waitpid(pid, 0)
            shutil.rmtree(home)
            yield *case, Outcome(**json.loads(text))


def _adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends (Linux)."""
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1):
        raise OSError("prctl failed")


def _made(make: Callable[[Path], Path], folder: Path) -> Path:
    """Call `make` in another process: it may use torch, and what is forked must not have."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as executor:
        return executor.submit(make, folder).result()


if __name__ == "__main__":
    sys.exit(main())
