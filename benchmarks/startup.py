"""How long swiftchat takes before it is of use: `--help`, the prompt, and one answer.

    python benchmarks/startup.py [MODEL] [RUNS]

The prompt is timed in a pty, from the start of the process to the byte that completes `>>>`.
What one answer costs is a whole `swiftchat -p` less what the engine itself takes for the same
prompt, from starting the worker to its end, in a process that has imported all it needs. The runs
of both alternate, and of each the median and the least are printed: on a machine that does other
things the least is nearer to what the program is to blame for.
"""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pexpect

from swiftchat.engine.client import EngineClient
from swiftchat.engine.params import EngineConfig, SamplingParams
from swiftchat.engine.protocol import Finished
from swiftchat.tokenizer import Tokenizer
from swiftchat.weights.package_index import DEFAULT_MODEL
from swiftchat.weights.store import default_store

SWIFTCHAT = [sys.executable, "-m", "swiftchat.chat"]
QUESTION, NUM_TOKENS = "What is the capital of France?", 8


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


def one_shot_s(model: Path) -> float:
    options = ["-m", str(model), "-p", QUESTION, "-n", str(NUM_TOKENS), "--temp", "0"]
    start = time.perf_counter()
    subprocess.run([*SWIFTCHAT, *options, "--no-save"], stdout=subprocess.DEVNULL,
                   stdin=subprocess.DEVNULL, check=True)  # fmt: skip
    return time.perf_counter() - start


def engine_s(model: Path, ids: list[int]) -> float:
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)
    start = time.perf_counter()
    with EngineClient(EngineConfig(), model) as engine:
        engine.wait_ready()
        for event in engine.generate(ids, params):
            if isinstance(event, Finished):
                break
    return time.perf_counter() - start


def main() -> None:
    model = default_store().find(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_MODEL, offline=True)
    num_runs = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    messages = [{"role": "user", "content": QUESTION}]
    ids = Tokenizer.load(model).apply_template(messages)
    times: dict[str, list[float]] = {"--help": [], "prompt": [], "one shot": [], "engine alone": []}
    print(f"load average {os.getloadavg()[0]:.2f}, {os.cpu_count()} CPUs")
    for _ in range(num_runs):
        times["--help"].append(help_s())
        times["prompt"].append(prompt_s(model))
        times["one shot"].append(one_shot_s(model))
        times["engine alone"].append(engine_s(model, ids))
    for name, values in times.items():
        print(f"{name:13} median {statistics.median(values):.3f} s  least {min(values):.3f} s")
    over = statistics.median(times["one shot"]) - statistics.median(times["engine alone"])
    least = min(times["one shot"]) - min(times["engine alone"])
    print(f"{'overhead':13} median {over:.3f} s  least {least:.3f} s")
    print(f"load average {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
