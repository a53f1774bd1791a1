"""How long a prompt delays the tokens of an answer in progress, with random weights.

    python benchmarks/gpu/fairness.py [--shape llama-3.1-8b] [--prompt 30000]

Prints the time between tokens of the answer before and while the prompt is computed, and the chunks
of the prompt. Twice, because the first run compiles kernels.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import Prefill, Tokens
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine

CUBINS = Path(tempfile.gettempdir(), "swiftchat-bench-cubins")


def measure(engine: Engine, num_tokens: int, first_id: int) -> None:
    """Print the delays; `first_id` keeps the prompt from being found in the prefix cache."""
    engine.add(1, [5] * 100, SamplingParams(max_tokens=4000, seed=1, speculate="off"))
    gaps_ms = token_gaps_ms(engine, 50)
    print(f"alone: median {statistics.median(gaps_ms[10:]):.1f} ms between tokens")
    started = time.perf_counter()
    engine.add(2, [first_id, *([6] * (num_tokens - 1))], SamplingParams(max_tokens=1))
    gaps_ms, chunks, done, last = [], [], 0, started
    while done < num_tokens:
        for key, event in engine.step():
            if key == 1 and isinstance(event, Tokens):
                now = time.perf_counter()
                gaps_ms.append(1000 * (now - last))
                last = now
            if key == 2:
                reached = event.done if isinstance(event, Prefill) else num_tokens
                chunks, done = [*chunks, reached - done], reached
    print(
        f"with a prompt of {num_tokens}: {len(gaps_ms)} tokens in {last - started:.2f} s, "
        f"between tokens median {statistics.median(gaps_ms):.1f} ms, "
        f"95th percentile {statistics.quantiles(gaps_ms, n=20)[-1]:.1f} ms, "
        f"most {max(gaps_ms):.1f} ms"
    )
    print("chunks:", *chunks)
    engine.cancel(1)
    while engine.has_work:
        engine.step()


def token_gaps_ms(engine: Engine, num_tokens: int) -> list[float]:
    gaps_ms: list[float] = []
    last = time.perf_counter()
    while len(gaps_ms) < num_tokens:
        if any(isinstance(event, Tokens) for _, event in engine.step()):
            now = time.perf_counter()
            gaps_ms.append(1000 * (now - last))
            last = now
    return gaps_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="llama-3.1-8b")
    parser.add_argument("--prompt", type=int, default=30_000)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    context = arguments.prompt + 4200
    config = EngineConfig(
        device=arguments.device,
        dtype="bfloat16",
        dummy=arguments.shape,
        ctx_size_tokens=context,
        cache_tokens=3 * context,
    )
    engine = build_engine(Path(), config, cubins=CUBINS)
    for run in range(2):
        measure(engine, arguments.prompt, 10 + run)


if __name__ == "__main__":
    main()
