"""Start-up times of swiftchat: `--help`, the prompt, and one answer.

    python benchmarks/startup.py [MODEL] [RUNS]

The prompt is timed in a pty, from the start of the process to the byte that completes `>>>`. "not
engine" is the time of `swiftchat -p` without the engine's: starting the worker until it is ready,
generating, and closing. "first byte" is the time of `swiftchat -p` until its answer begins:
"cold" loads the model, "attached" uses the engine of a `swiftchat serve`. Prints median and minimum
of each; on a busy machine the minimum is the better estimate.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pexpect

from swiftchat.weights.hub.package_index import DEFAULT_MODEL
from swiftchat.weights.store import default_store

SWIFTCHAT = [sys.executable, "-m", "swiftchat.chat"]
# Runs swiftchat and prints to stderr how long it waited for the engine.
_TIMED = """
import sys, time
from swiftchat.chat import cli
from swiftchat.engine.api import client

spans = {}
def timed(cls, name, begins=None, ends=None):
    whole = getattr(cls, name)
    def wrapped(*args, **options):
        now = time.perf_counter()
        if begins: spans.setdefault(begins, [now, now])
        result = whole(*args, **options)
        if ends: spans[ends][1] = time.perf_counter()
        return result
    setattr(cls, name, wrapped)
timed(client.EngineClient, "start", begins="load")
timed(client.EngineClient, "wait_ready", ends="load")
timed(client.EngineClient, "generate", begins="answer")
timed(client.EngineClient, "close", begins="end", ends="end")
iterate = client.Generation.__iter__
def events(self):
    yield from iterate(self)
    spans["answer"][1] = time.perf_counter()
client.Generation.__iter__ = events
# A second call of `wait_ready` returns at once and must not extend the span of loading.
ready = client.EngineClient.wait_ready
def first_ready(self, *args):
    if self.info: return self.info
    return ready(self, *args)
client.EngineClient.wait_ready = first_ready
try:
    cli.main()
finally:
    print("engine", sum(end - begin for begin, end in spans.values()), file=sys.stderr)
"""


def help_s() -> float:
    start = time.perf_counter()
    subprocess.run([*SWIFTCHAT, "--help"], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def prompt_s(model: Path) -> float:
    start = time.perf_counter()
    environment = {**os.environ, "PROMPT_TOOLKIT_NO_CPR": "1", "TERM": "xterm-256color"}
    command, *args = [*SWIFTCHAT, "-m", str(model), "--no-save"]
    process = pexpect.spawn(command, args, dimensions=(24, 80), env=environment, timeout=20)
    process.expect(">>>")
    taken_s = time.perf_counter() - start
    process.close(force=True)
    return taken_s


def one_shot_s(model: Path) -> tuple[float, float]:
    """Return the total time and the part outside the engine."""
    options = ["-m", str(model), "-p", "What is the capital of France?", "-n", "8", "--temp", "0"]
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _TIMED, *options, "--no-save"],
        check=True,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    taken_s = time.perf_counter() - start
    return taken_s, taken_s - float(done.stderr.split()[-1])


@contextmanager
def serving(model: Path) -> Iterator[dict[str, str]]:
    """Run `swiftchat serve`; yields the environment of programs that attach to it."""
    with TemporaryDirectory() as runtime:
        environment = {**os.environ, "XDG_RUNTIME_DIR": runtime}
        command = [*SWIFTCHAT, "serve", str(model)]
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        while "is ready" not in process.stderr.readline():
            assert process.poll() is None
        yield environment
        process.terminate()
        process.wait()


def first_byte_s(model: Path, environment: dict[str, str], *options: str) -> float:
    args = ["-m", str(model), "-p", "What is the capital of France?", "-n", "8", "--temp", "0"]
    start = time.perf_counter()
    with subprocess.Popen(
        [*SWIFTCHAT, *args, "--no-save", *options],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stdout.read(1)
        return time.perf_counter() - start


def main() -> None:
    model = default_store().find(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_MODEL, offline=True)
    num_runs = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    times: dict[str, list[float]] = {"--help": [], "prompt": [], "one shot": [], "not engine": []}
    first_bytes: dict[str, list[float]] = {"first byte, cold": [], "first byte, attached": []}
    print(f"load average {os.getloadavg()[0]:.2f}, {os.cpu_count()} CPUs")
    for _ in range(num_runs):
        times["--help"].append(help_s())
        times["prompt"].append(prompt_s(model))
        for name, taken_s in zip(("one shot", "not engine"), one_shot_s(model), strict=True):
            times[name].append(taken_s)
    with serving(model) as environment:
        for _ in range(num_runs):
            for (_, values), option in zip(first_bytes.items(), (["--no-attach"], []), strict=True):
                values.append(first_byte_s(model, environment, *option))
    for name, values in (times | first_bytes).items():
        print(f"{name:20} median {statistics.median(values):.3f} s  least {min(values):.3f} s")
    print(f"load average {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
