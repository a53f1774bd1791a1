"""Time to the first token of short prompts on a GPU, with captured prefill chunks and without.

    python benchmarks/gpu/first_token.py [--shape llama-3.1-8b …] [--cached 0 30000] [--tokens 30 …]

Prompts of random ids follow a cached prefix, as the second turn of a conversation does. The time is
from `Engine.add` to the first token by the host clock, median of `--repeats`.
"""

import argparse
import random
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import Tokens
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine

PARAMS = SamplingParams(temperature=0, max_tokens=1)


def first_token_s(engine: Engine, prompt: list[int]) -> float:
    started, first = time.perf_counter(), 0.0
    engine.add(1, prompt, PARAMS)
    while engine.has_work:
        events = engine.step()
        if not first and any(isinstance(event, Tokens) for _, event in events):
            first = time.perf_counter() - started
    return first


def median_ms(engine: Engine, prefix: list[int], num_tokens: int, repeats: int) -> float:
    """Return the median over prompts that end differently, so that only the prefix is cached."""

    def prompt() -> list[int]:
        return prefix + random.choices(range(1, engine.vocab_size), k=num_tokens)

    first_token_s(engine, prompt())
    return 1e3 * statistics.median(first_token_s(engine, prompt()) for _ in range(repeats))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", nargs="+", default=["llama-3.1-8b"], help="SHAPE[:SCHEME]")
    parser.add_argument("--cached", type=int, nargs="+", default=[0, 30_000])
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 30, 64, 128, 256, 512])
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print("| shape | cached | new tokens | ms without graphs | ms with graphs |")
    print("|---|---|---|---|---|")
    for shape in args.shape:
        ctx_size = max(args.cached) + max(args.tokens) + 64
        config = EngineConfig(device="cuda", dummy=shape, ctx_size_tokens=ctx_size)
        engine = build_engine(Path(), config)
        while engine.can_prepare:
            engine.prepare()
        graphs = engine.graphs
        for num_cached in args.cached:
            prefix = random.choices(range(1, engine.vocab_size), k=num_cached)
            for num_tokens in args.tokens:
                times = []
                for used in (replace(graphs, prefill=None), graphs):
                    engine.use_graphs(used)
                    times.append(median_ms(engine, prefix, num_tokens, args.repeats))
                print(
                    f"| {shape} | {num_cached} | {num_tokens} | {times[0]:.1f} | {times[1]:.1f} |",
                    flush=True,
                )
        del engine, graphs
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
