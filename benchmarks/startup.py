"""Start-up times of swiftchat as rows of Markdown: `--help`, prompt, answers, compiling kernels.

    python benchmarks/startup.py [MODEL] [RUNS]

The prompt is timed in a pty, from the start of the process to the byte that completes `>>>`. "not
engine" is the time of `swiftchat -p` without the engine's: starting the worker until it is ready,
generating, and closing. "first byte" is the time of `swiftchat -p` until its answer begins:
"cold" loads the model, "attached" uses the engine of a `swiftchat serve`. "first token" is that of
a prompt of 340 tokens, once the model is loaded, by two threads with AVX2. The CPU kernels of all
variants are compiled once. Prints median and minimum; on a busy machine the minimum is the better
estimate.
"""

import json
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

from swiftchat.engine.cpu.compile_kernels import build, host_target
from swiftchat.weights.hub.known_models import DEFAULT_MODEL
from swiftchat.weights.store import default_store

# Limits our kernels and torch's libraries to AVX2.
AVX2 = {
    "SWIFTCHAT_CPU_KERNELS": "avx2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
PROMPT_TOKENS = 340
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


def first_token_s(model: Path, num_words: int) -> tuple[float, int]:
    """Return the time to the first token of a prompt of this many words, and its tokens."""
    args = ["-m", str(model), "-p", " one" * num_words, "-n", "1", "--temp", "0", "--threads", "2"]
    done = subprocess.run(
        [*SWIFTCHAT, *args, "--no-save", "--no-attach", "--json"],
        env=os.environ | AVX2,
        check=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
    )
    report = json.loads(done.stdout)
    return report["timings"]["ttft_s"], report["usage"]["prompt_tokens"]


def compile_s() -> float:
    """Return the time to compile all variants of the CPU kernels, with empty caches."""
    target = host_target()
    assert target is not None
    with TemporaryDirectory() as folder:
        os.environ["ZIG_GLOBAL_CACHE_DIR"] = folder
        start = time.perf_counter()
        build(target, Path(folder) / "lib")
        return time.perf_counter() - start


def main() -> None:
    model = default_store().find(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_MODEL, offline=True)
    num_runs = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    print(f"load average {os.getloadavg()[0]:.2f}, {os.cpu_count()} CPUs, {num_runs} runs\n")
    _, few_tokens = first_token_s(model, 1)
    num_words = PROMPT_TOKENS - few_tokens + 1
    times: dict[str, list[float]] = {}
    for _ in range(num_runs):
        one_shot, not_engine = one_shot_s(model)
        first_token, num_tokens = first_token_s(model, num_words)
        for name, taken_s in (
            ("`swiftchat --help`", help_s()),
            ("prompt visible", prompt_s(model)),
            ("`swiftchat -p`, 8 tokens, all of it", one_shot),
            ("`swiftchat -p`, without the engine's own time", not_engine),
            (f"first token of {num_tokens} prompt tokens, 2 threads, AVX2", first_token),
        ):
            times.setdefault(name, []).append(taken_s)
    with serving(model) as environment:
        for _ in range(num_runs):
            for name, options in (("cold", ["--no-attach"]), ("attached", [])):
                name = f"`swiftchat -p` to the first byte, {name}"
                times.setdefault(name, []).append(first_byte_s(model, environment, *options))
    times["compile the CPU kernels, all variants (once)"] = [compile_s()]
    print("| | median s | least s |\n|---|---|---|")
    for name, values in times.items():
        print(f"| {name} | {statistics.median(values):.3f} | {min(values):.3f} |")
    print(f"\nload average {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
