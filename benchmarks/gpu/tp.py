"""Decoding on several GPUs: start-up time, ms a step and ms to the first token.

    python benchmarks/gpu/tp.py --shape llama-3.1-8b --tp 1 2 4 [--context 128 1024] [--json FILE]
    python benchmarks/gpu/tp.py --shape llama-3.1-8b --tp 1 2 --pp 1 2      with pipeline stages

Random weights; each combination in a process of its own, one after the other in one run.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from swiftchat.engine.api.params import EngineConfig, SamplingParams

ANSWER_TOKENS, RUNS = 160, 3


def measure(
    tp: int, pp: int, shape: str, contexts: list[int], batch: int, result: Connection
) -> None:
    from swiftchat.engine.api.protocol import Tokens
    from swiftchat.engine.generation.build import build_engine
    from swiftchat.engine.ranks.spawn import start_ranks
    from swiftchat.engine.ranks.spmd import SpmdEngine
    from swiftchat.engine.ranks.supervisor import RankSupervisor

    def lost(error: Exception) -> None:
        print(f"lost: {error}", flush=True)
        os._exit(1)

    config = EngineConfig(
        device="cuda", dummy=shape, tp=tp, pp=pp, ctx_size_tokens=8192, cache_tokens=8192 * batch
    )
    started = time.perf_counter()
    engine: Any = (
        build_engine(Path(), config)
        if tp * pp == 1
        else SpmdEngine(
            Path(), config, None, RankSupervisor(*start_ranks(tp * pp), lost, lambda *_: None)
        )
    )
    start_s = time.perf_counter() - started
    while engine.can_prepare:
        engine.prepare()
    found = {
        "start_s": start_s,
        "device": engine.info.device,
        "gb_a_gpu": engine.info.weights_bytes / pp / 1e9,
    }
    params = SamplingParams(
        temperature=0.7, top_p=0.95, max_tokens=ANSWER_TOKENS, seed=1, speculate="off"
    )
    for context in contexts:
        steps, prefills = [], []
        for run in range(RUNS):
            began = time.perf_counter()
            for i in range(batch):
                prompt = [(7 * j + 131 * run + 17 * i + context) % 32000 for j in range(context)]
                engine.add(batch * run + i, prompt, params)
            first, count, latest = None, 0, began
            while engine.has_work:
                outcomes = engine.step()
                if any(isinstance(event, Tokens) for _, event in outcomes):
                    latest = time.perf_counter()
                    count += 1
                    first = first or (latest, count)
            assert first is not None
            prefills.append(first[0] - began)
            steps.append((latest - first[0]) / (count - first[1]))
        found[f"ms a step at {context}"] = 1e3 * statistics.median(steps)
        found[f"ms to first token at {context}"] = 1e3 * statistics.median(prefills)
    found["steps from a graph"] = engine.stats()["graph_steps"]
    result.send(found)
    os._exit(0)


def run_alone(
    tp: int, pp: int, shape: str, contexts: list[int], batch: int
) -> dict[str, float | str | None]:
    """Return the figures of `measure` in a process of its own, or its exit code as `failed`."""
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=measure, args=(tp, pp, shape, contexts, batch, sending))
    process.start()
    sending.close()
    try:
        found: dict[str, float | str | None] = receiving.recv()
    except EOFError:
        process.join()
        found = {"failed": process.exitcode}
    process.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="llama-3.1-8b")
    parser.add_argument("--tp", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--pp", type=int, nargs="+", default=[1], help="combined with each --tp")
    parser.add_argument("--context", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = {}
    for pp, tp in itertools.product(args.pp, args.tp):
        name = str(tp) if pp == 1 else f"{tp} x pp {pp}"
        results[name] = run_alone(tp, pp, args.shape, args.context, args.batch)
        print(name, json.dumps(results[name]), flush=True)
    if args.json:
        args.json.write_text(
            json.dumps({"shape": args.shape, "batch": args.batch, "tp": results}, indent=1)
        )


if __name__ == "__main__":
    main()
